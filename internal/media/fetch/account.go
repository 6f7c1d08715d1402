package fetch

import (
	"context"
	"net"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
)

// account identifies where a download is charged: the client that requested it first, and the host
// that serves it. "" has no share limit.
type account struct{ client, host string }

type clientKey struct{}

// WithClient charges what is fetched under ctx to a client: none may take more than a share of the
// total. Without it only hosts have shares.
func WithClient(ctx context.Context, client string) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

// ClientOf returns the client set by [WithClient], "" without one.
func ClientOf(ctx context.Context) string {
	client, _ := ctx.Value(clientKey{}).(string)
	return client
}

// accountOf returns the account for a client's URL, before its host is connected to.
func accountOf(ctx context.Context, u *url.URL) account {
	return account{client: ClientOf(ctx), host: strings.ToLower(u.Hostname())}
}

// tracePeer returns a context which sets host to the peer of the last request under it. One peer
// can have any number of names.
func tracePeer(ctx context.Context, host *string) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
		*host = peerKey(c.Conn.RemoteAddr())
	}})
}

// peerKey returns the addresses which one party controls: a single IPv4 address, or an IPv6 /64
// network.
func peerKey(a net.Addr) string {
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

// Stats counts what a Fetcher has done since it was created, for metrics.
type Stats struct {
	// Sizes and Files count the requests for either, by URL; SizeHits and FileHits count those
	// answered from the cache.
	Sizes, SizeHits uint64
	Files, FileHits uint64
	// Bytes is the memory that files use now, including downloads in progress.
	Bytes int64
}

// hitCounter counts lookups and cache hits.
type hitCounter struct{ asked, hits atomic.Uint64 }

// record counts a lookup.
func (t *hitCounter) record(hit bool) {
	t.asked.Add(1)
	if hit {
		t.hits.Add(1)
	}
}

// Stats returns the counters so far.
func (f *Fetcher) Stats() Stats {
	return Stats{
		Sizes: f.sizeCounter.asked.Load(), SizeHits: f.sizeCounter.hits.Load(),
		Files: f.fileCounter.asked.Load(), FileHits: f.fileCounter.hits.Load(), Bytes: f.Memory(),
	}
}
