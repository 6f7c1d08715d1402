package main

import (
	"net/http"
	"net/http/httputil"
	"net/url"
)

// newReverseProxy is about the cheapest possible gateway in Go: the standard library's reverse proxy, which
// does not parse what it forwards.
func newReverseProxy(target string) (http.Handler, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	p := httputil.NewSingleHostReverseProxy(u)
	p.FlushInterval = -1 // each token must be forwarded immediately
	p.Transport = &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// An engine which answers immediately may do so before the proxy has read the end of the request's
		// body, which the server would then close.
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		p.ServeHTTP(w, r)
	}), nil
}
