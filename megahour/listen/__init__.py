"""A live speech recognition server: a web page with a microphone, a WebSocket, and files by POST."""
