package frontend

import (
	"net/http"
	"time"
)

// http2Config bounds one HTTP/2 connection, which TLS clients choose. A silent connection is pinged:
// otherwise its streams would hold a connection whose client disappeared.
func (f *Frontend) http2Config() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams: f.cfg.MaxStreams,
		SendPingTimeout:      30 * time.Second,
		PingTimeout:          15 * time.Second,
		WriteByteTimeout:     f.cfg.WriteTimeout,
	}
}
