package fetch

import (
	"context"
	"net"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"strings"
)

// owner says on whose account something is fetched: the client that asked for it first, and the host
// that serves it. The share of "" is not bounded.
type owner struct{ client, host string }

type clientKey struct{}

// WithClient has what is fetched under ctx count on a client's account: none may take more than a share
// of what all have. Without it only hosts have accounts.
func WithClient(ctx context.Context, client string) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

// ClientOf returns the client that [WithClient] gave, "" without one.
func ClientOf(ctx context.Context) string {
	client, _ := ctx.Value(clientKey{}).(string)
	return client
}

// ownerOf returns on whose account a URL is fetched that a client shows, before its host is connected to.
func ownerOf(ctx context.Context, u *url.URL) owner {
	return owner{client: ClientOf(ctx), host: strings.ToLower(u.Hostname())}
}

// tracePeer has host set to the peer that the last request under the context that it returns went to.
// One peer can have any number of names.
func tracePeer(ctx context.Context, host *string) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
		*host = peerOf(c.Conn.RemoteAddr())
	}})
}

// peerOf returns what one owner of addresses has: an address of IPv4, a network of 64 bits of IPv6.
func peerOf(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return a.String()
	}
	ip := tcp.AddrPort().Addr().Unmap()
	if ip.Is6() {
		return netip.PrefixFrom(ip.WithZone(""), 64).Masked().String()
	}
	return ip.String()
}
