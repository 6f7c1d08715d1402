"""Takes spans at an address and a port, and prints the path of each request."""

import http.server
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        print(self.path, flush=True)
        self.send_response(200)
        self.end_headers()


http.server.HTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
