"""A server that recognises speech while it comes: a page with a microphone, a WebSocket, and files by POST."""
