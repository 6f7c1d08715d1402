package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/internal/media/probe"
)

// newTransport returns an HTTP transport for untrusted hosts: without the environment's proxies,
// whose connections would bypass the address check, without cookies or credentials, and without
// compression, which would allow decompression bombs.
func newTransport(c *Config) *http.Transport {
	dialer := &net.Dialer{Timeout: c.DialTimeout, KeepAlive: 30 * time.Second, Resolver: c.Resolver, Control: c.checkDial}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    c.DialTimeout,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.RootCAs},
		ResponseHeaderTimeout:  c.HeaderTimeout,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           128,
		MaxIdleConnsPerHost:    8,
		MaxConnsPerHost:        64,
		IdleConnTimeout:        30 * time.Second,
		ReadBufferSize:         8 << 10,
	}
}

// Errors of responses. They reveal no content.
var (
	errStatus    = errors.New("the answer is no file")
	errRange     = errors.New("the answer is not the range that was asked for")
	errEncoded   = errors.New("the answer is compressed")
	errLength    = errors.New("the answer has not the length that it claims")
	errTooLarge  = errors.New("the file is too large")
	errIdle      = errors.New("nothing came for too long")
	errSlow      = errors.New("too little came for too long")
	errRedirects = errors.New("there are too many redirects")
)

// requestFile requests a file, or the range need of it unless that is zero, and follows redirects,
// which it checks like the URLs of clients. The caller must close the response's body.
func (f *Fetcher) requestFile(ctx context.Context, u *url.URL, need probe.ByteRange) (*http.Response, *url.URL, error) {
	for hop := 0; ; hop++ {
		resp, err := f.sendRequest(ctx, u, need)
		if err != nil {
			return nil, nil, err
		}
		if !isRedirect(resp.StatusCode) {
			return resp, u, nil
		}
		location := resp.Header.Get("Location")
		_ = resp.Body.Close() // its content does not matter
		if hop >= f.cfg.MaxRedirects {
			return nil, nil, invalidURL(errRedirects, "its host redirects more than "+strconv.Itoa(max(f.cfg.MaxRedirects, 0))+" times")
		}
		next, err := f.resolveRedirect(u, location)
		if err != nil {
			return nil, nil, err
		}
		u = next
	}
}

// sendRequest makes one request.
func (f *Fetcher) sendRequest(ctx context.Context, u *url.URL, need probe.ByteRange) (*http.Response, error) {
	plain := *u
	plain.RawQuery = escapeQuery(u.RawQuery)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, plain.String(), nil)
	if err != nil {
		return nil, invalidURL(err, "it is not written as a URL is")
	}
	req.Header.Set("User-Agent", "penstock")
	req.Header.Set("Accept", "image/*, video/*, audio/*, */*;q=0.1")
	req.Header.Set("Accept-Encoding", "identity")
	if !need.IsZero() {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(need.Offset, 10)+"-"+strconv.FormatInt(need.Offset+need.Length-1, 10))
	}
	resp, err := f.transport.RoundTrip(req)
	if err != nil {
		return nil, fetchError(ctx, err)
	}
	return resp, nil
}

// escapeQuery percent-encodes what cannot be in the first line of a request, as browsers do: there
// a space ends the URL, and what follows it would be misread.
func escapeQuery(query string) string {
	var out strings.Builder
	for i := range len(query) {
		if b := query[i]; b > ' ' && b < 0x7F {
			out.WriteByte(b)
		} else {
			out.WriteString("%" + strconv.FormatInt(0x100|int64(b), 16)[1:])
		}
	}
	return out.String()
}

// isRedirect reports whether a status means that the file is elsewhere.
func isRedirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// resolveRedirect returns the target of a redirect, if fetching it is allowed.
func (f *Fetcher) resolveRedirect(from *url.URL, location string) (*url.URL, error) {
	if location == "" || len(location) > maxURL {
		return nil, invalidURL(errStatus, "its host redirects to nowhere")
	}
	to, err := from.Parse(location)
	if err != nil {
		return nil, invalidURL(nil, "its host redirects to what is no URL")
	}
	if from.Scheme == "https" && to.Scheme != "https" {
		return nil, invalidURL(nil, "its host redirects from https to what is not encrypted")
	}
	if err := f.cfg.checkURL(to); err != nil {
		return nil, invalidURL(err, "its host redirects to where nothing may be fetched from")
	}
	return to, nil
}

// fetchError returns the client's error for a request without a response, or for an interrupted
// response.
func fetchError(ctx context.Context, err error) error {
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	var timeout net.Error
	switch cause := context.Cause(ctx); {
	case errors.Is(err, errRefused):
		return invalidURL(err, "its host's address is "+forbiddenAddress)
	case errors.Is(cause, errIdle):
		return invalidURL(err, "its host sent nothing for too long")
	case errors.Is(err, errSlow):
		return invalidURL(err, "its host sent it too slowly")
	case errors.Is(cause, context.DeadlineExceeded):
		return invalidURL(err, "it could not be fetched within the time that there is: send the file as a data: URI")
	case cause != nil: // no caller waits any longer, or Close was called
		return &fault.Error{Code: fault.Unavailable, Message: "media URL: this server is about to stop", Err: cause}
	case errors.As(err, &dns):
		return invalidURL(err, "its host was not found")
	case errors.As(err, &certificate):
		return invalidURL(err, "its host's certificate is not valid")
	case errors.As(err, &timeout) && timeout.Timeout():
		return invalidURL(err, "its host did not answer in time")
	case errors.Is(err, errLength) || errors.Is(err, io.ErrUnexpectedEOF):
		return invalidURL(err, "its host sent less than it said, or more")
	}
	return invalidURL(err, "its host could not be reached")
}

// checkUncompressed rejects compressed responses, whose decompressed size is not bounded by what is
// sent.
func checkUncompressed(resp *http.Response) error {
	if e := resp.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return invalidURL(errEncoded, "its host sent it compressed")
	}
	return nil
}

// fetchRange returns a range of a file, the length of the file (-1 if unknown), and the URL and
// ETag it was found with.
func (f *Fetcher) fetchRange(ctx context.Context, u *url.URL, need probe.ByteRange) (b []byte, total int64, at *url.URL, tag string, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	resp, at, err := f.requestFile(ctx, u, need)
	if err != nil {
		return nil, 0, nil, "", err
	}
	defer func() { _ = resp.Body.Close() }() // everything relevant was read
	if err := checkUncompressed(resp); err != nil {
		return nil, 0, nil, "", err
	}
	switch {
	case resp.StatusCode == http.StatusOK:
		return nil, 0, nil, "", invalidURL(errRange, "its host does not answer requests for a part of a file, so the size is not known")
	case resp.StatusCode != http.StatusPartialContent:
		return nil, 0, nil, "", invalidURL(errStatus, "its host answered with status "+strconv.Itoa(resp.StatusCode))
	}
	n, total, ok := parseContentRange(resp.Header.Get("Content-Range"), need)
	if !ok || resp.ContentLength >= 0 && resp.ContentLength != n {
		return nil, 0, nil, "", invalidURL(errRange, "its host answered with another part of the file than was asked for")
	}
	b, err = f.readAll(stop, &limitedBody{Reader: resp.Body, announced: n, limit: n})
	if err != nil {
		return nil, 0, nil, "", fetchError(ctx, err)
	}
	return b, total, at, resp.Header.Get("ETag"), nil
}

// parseContentRange parses a Content-Range, which must cover the requested range up to the end of
// the file. It returns the length of the range and of the file.
func parseContentRange(s string, need probe.ByteRange) (n, total int64, ok bool) {
	s, ok = strings.CutPrefix(s, "bytes ")
	if !ok {
		return 0, 0, false
	}
	bounds, size, ok := strings.Cut(s, "/")
	from, to, ok2 := strings.Cut(bounds, "-")
	if !ok || !ok2 {
		return 0, 0, false
	}
	first, err1 := strconv.ParseUint(from, 10, 62)
	last, err2 := strconv.ParseUint(to, 10, 62)
	total = -1
	if size != "*" {
		t, err := strconv.ParseUint(size, 10, 62)
		if err != nil || last >= t {
			return 0, 0, false
		}
		total = int64(t)
	}
	want := need.Offset + need.Length - 1
	if total >= 0 {
		want = min(want, total-1)
	}
	if err1 != nil || err2 != nil || int64(first) != need.Offset || int64(last) > want || last < first || total >= 0 && int64(last) != want {
		return 0, 0, false
	}
	return int64(last-first) + 1, total, true
}
