package main

import (
	"net/http"
	"net/http/httputil"
	"net/url"
)

// proxyTo is what a gateway can hardly be cheaper than in Go: the standard library's
// reverse proxy, which reads nothing of what it passes on.
func proxyTo(target string) (http.Handler, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	p := httputil.NewSingleHostReverseProxy(u)
	p.FlushInterval = -1 // each token goes on as it comes, as it must
	p.Transport = &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// An engine that answers at once may do so before the proxy has seen the end of the
		// request's body, which the server would close under it then.
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		p.ServeHTTP(w, r)
	}), nil
}
