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
	return p, nil
}
