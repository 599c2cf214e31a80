"""File systems by address: a path, or any URL of fsspec. What an address needs that is missing is named."""

from __future__ import annotations

from typing import Any

from megahour.core.errors import ConfigError

PACKAGES = {
    **{"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"},
    **{"hdfs": "pyarrow", "webhdfs": "requests", "sftp": "paramiko", "smb": "smbprotocol"},
    **{"http": "aiohttp", "https": "aiohttp"},
}
HDFS = (
    "hdfs:// needs Java and Hadoop's client on this machine: set JAVA_HOME, HADOOP_HOME and "
    "CLASSPATH=$(hadoop classpath --glob), and ARROW_LIBHDFS_DIR if libhdfs.so is elsewhere"
)


def file_system(address: str, **options: Any) -> tuple[Any, str]:
    """The file system of an address and the path in it. options: of fsspec's file system.

    Raises
    ------
    ConfigError: its package is not installed, nobody knows its protocol, or there is no way to its server.
    """
    import fsspec

    protocol = address.partition("://")[0].rpartition("::")[2]
    try:
        fs, path = fsspec.core.url_to_fs(address, **options)
    except ImportError as error:
        remedy = f"pip install {PACKAGES.get(protocol, 'the package that it names')}"
        raise ConfigError(f"{protocol}:// cannot be read: {error}", where=address, remedy=remedy) from error
    except ValueError as error:
        known = "a path, or s3://, gs://, hdfs://, https:// … (any protocol of fsspec)"
        raise ConfigError(str(error), where=address, remedy=f"give {known}") from error
    except OSError as error:
        remedy = HDFS if protocol == "hdfs" else "check the address and the network"
        raise ConfigError(f"{protocol}:// cannot be opened: {error}", where=address, remedy=remedy) from error
    return fs, str(path)
