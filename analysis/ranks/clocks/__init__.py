"""One clock per host, fitted over what ranks do together."""
