"""Security: the permissions of users. PURE: no sockets."""
