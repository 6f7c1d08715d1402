package node

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// peerTimeout bounds each look at a server that did not answer as expected.
const peerTimeout = 2 * time.Second

// WrongPeer says that the server at a URL is not the one that was meant.
type WrongPeer struct {
	What   string // what is there
	Remedy string // what to name instead
}

// DescribePeer finds out why the server at a URL did not answer as a Penstock does: it
// speaks TLS and the URL does not, or the reverse, or it is another HTTP server. cause is
// the error of the request; nil if there was an answer. It returns nil if nothing listens
// there, and if a Penstock does.
func DescribePeer(ctx context.Context, client *http.Client, server string, cause error) *WrongPeer {
	if wrong := DescribeScheme(ctx, server, cause); wrong != nil || undialed(cause) {
		return wrong
	}
	live, header, err := asksLive(ctx, client, server)
	if live || err != nil {
		return nil
	}
	if header != "" {
		header = fmt.Sprintf(" (%.80s)", header)
	}
	return &WrongPeer{fmt.Sprintf("%s is not a Penstock, but another HTTP server%s", server, header), "name a Penstock"}
}

// DescribeScheme is DescribePeer for any HTTP server: it looks at the use of TLS alone.
func DescribeScheme(ctx context.Context, server string, cause error) *WrongPeer {
	u, err := url.Parse(server)
	if err != nil {
		return nil
	}
	var record tls.RecordHeaderError
	switch {
	case errors.Is(cause, http.ErrSchemeMismatch) || errors.As(cause, &record):
		return &WrongPeer{server + " does not speak TLS", "name http://" + u.Host}
	case u.Scheme == "http" && !undialed(cause) && speaksTLS(ctx, u):
		return &WrongPeer{server + " speaks TLS", "name https://" + u.Host}
	}
	return nil
}

// undialed reports whether a request failed because there was no connection.
func undialed(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// speaksTLS reports whether a TLS handshake gets an answer in TLS. Nothing is sent over the
// connection, so the certificate does not matter.
func speaksTLS(ctx context.Context, u *url.URL) bool {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	addr := u.Host
	if u.Port() == "" {
		addr = net.JoinHostPort(u.Hostname(), "80")
	}
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", addr)
	if err == nil {
		_ = conn.Close() // nothing was sent
		return true
	}
	var alert tls.AlertError
	return errors.As(err, &alert)
}

// asksLive asks a server whether it is a live Penstock, and returns the name that it gives
// itself in its headers.
func asksLive(ctx context.Context, client *http.Client, server string) (live bool, header string, err error) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/live", nil)
	if err != nil {
		return false, "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return false, "", err
	}
	defer resp.Body.Close()
	var body healthAnswer
	ok := json.NewDecoder(io.LimitReader(resp.Body, maxProbe)).Decode(&body) == nil && body.Status == "live"
	return ok, resp.Header.Get("Server"), nil
}
