package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// peerProbeTimeout bounds each probe of a server that did not answer as expected.
const peerProbeTimeout = 2 * time.Second

// WrongPeer says that the server at a URL is not the intended one.
type WrongPeer struct {
	What   string // what is there
	Remedy string // what to do: a setting to give, or another server to name
}

// DescribePeer finds out why the server at a URL did not answer as Penstock does: only one of the server and
// the URL uses TLS, its certificate is not accepted here, or it is another HTTP server. flag is the flag that
// names the server; cause is the error of the request, nil if there was an answer. It returns nil if nothing
// listens there, and if the server is Penstock.
func DescribePeer(ctx context.Context, client *http.Client, server, flag string, cause error) *WrongPeer {
	if wrong := DescribeScheme(ctx, server, flag, cause); wrong != nil || isDialError(cause) {
		return wrong
	}
	live, header, err := probeLive(ctx, client, server)
	if live || err != nil {
		return nil
	}
	if header != "" {
		header = fmt.Sprintf(" (%.80s)", header)
	}
	return &WrongPeer{fmt.Sprintf("%s is not a Penstock, but another HTTP server%s", server, header), "name a Penstock with " + flag}
}

// DescribeScheme is DescribePeer for any HTTP server: it checks only the use of TLS.
func DescribeScheme(ctx context.Context, server, flag string, cause error) *WrongPeer {
	if wrong := describeCertificate(server, flag, cause); wrong != nil {
		return wrong
	}
	u, err := url.Parse(server)
	if err != nil {
		return nil
	}
	var record tls.RecordHeaderError
	switch {
	case errors.Is(cause, http.ErrSchemeMismatch) || errors.As(cause, &record):
		return &WrongPeer{server + " does not speak TLS", "name http://" + u.Host + " with " + flag}
	case u.Scheme == "http" && !isDialError(cause) && speaksTLS(ctx, u):
		return &WrongPeer{server + " speaks TLS", "name https://" + u.Host + " with " + flag}
	}
	return nil
}

// describeCertificate is DescribePeer for a request that failed because the server's certificate was not
// accepted. It returns nil for every other cause.
func describeCertificate(server, flag string, cause error) *WrongPeer {
	var refused *tls.CertificateVerificationError
	if !errors.As(cause, &refused) {
		return nil
	}
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	wrong := &WrongPeer{fmt.Sprintf("the certificate of %s is not trusted here: %v", server, refused.Err), "name the certificates that sign it with --ca"}
	switch {
	case errors.As(cause, &name):
		wrong.Remedy = "name a host that it is for with " + flag
	case errors.As(cause, &invalid) && invalid.Reason == x509.Expired:
		wrong.Remedy = "give the server a certificate whose time has begun and is not over, and look at this machine's clock"
	}
	return wrong
}

// isDialError reports whether a request failed because there was no connection.
func isDialError(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// speaksTLS reports whether the server at u answers a TLS handshake in TLS. It sends nothing over the
// connection, so the certificate does not matter.
func speaksTLS(ctx context.Context, u *url.URL) bool {
	ctx, cancel := context.WithTimeout(ctx, peerProbeTimeout)
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

// probeLive asks a server whether it is a live Penstock process, and returns its Server header.
func probeLive(ctx context.Context, client *http.Client, server string) (live bool, header string, err error) {
	ctx, cancel := context.WithTimeout(ctx, peerProbeTimeout)
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
