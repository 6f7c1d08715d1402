"""Serves a directory over HTTPS at an address and a port, with chain.pem and key.pem."""

import functools
import http.server
import ssl
import sys

handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=sys.argv[3])
server = http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), handler)
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain("chain.pem", "key.pem")
server.socket = tls.wrap_socket(server.socket, server_side=True)
server.serve_forever()
