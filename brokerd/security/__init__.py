"""Security: principals, certificates, permissions, TLS. No sockets, files or SQL."""
