package frontend

import (
	"net/http"
	"time"
)

// http2 bounds what one connection of HTTP/2, which TLS clients choose, may ask for.
// A connection that is silent is asked whether it lives: otherwise one whose client
// is gone without a word would be held by its streams.
func (f *Frontend) http2() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams: f.cfg.MaxStreams,
		SendPingTimeout:      30 * time.Second,
		PingTimeout:          15 * time.Second,
		WriteByteTimeout:     f.cfg.WriteTimeout,
	}
}
