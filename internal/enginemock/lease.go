package enginemock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"penstock/core/kv"
)

// Prefill instances keep leases of the blocks which decode instances fetch. A decode instance claims one at the
// address which the request names, as a real one reads the other's memory there: mocked instances of all processes
// find each other. Whatever differs from what the prefill instance said, and a lease which has ended, finds none: the
// decode instance computes the whole prompt, as vLLM 0.29 was seen to do (vllm#52234, where a reference whose lease
// had expired, and one of an unknown request, gave the right text). A lease which was claimed before gives wrong text with
// status 200, as there: the blocks have another prompt's values. That was seen of a model with several cache groups; of one
// with a single group it is not known.
//
//	state    event                                        next
//	none     a prefill ends, or one with a room begins    kept, or pending
//	pending  the prefill ends                             kept
//	pending  the prefill fails                            none
//	kept     a decode claims it                           none
//	kept     leaseTime passes, or the engine restarts     none
type lease struct {
	prompt uint64        // digest of the prompt's tokens
	tokens int           // of the prompt
	ready  chan struct{} // closed when the prefill has ended
	end    time.Time     // of a lease which is kept
}

const (
	// leaseTime is how long a prefill keeps blocks for a decode (vLLM's kv_lease_duration).
	leaseTime = 30 * time.Second
	// maxLeases bounds the leases which are kept.
	maxLeases = 1 << 16
	// claimTime bounds a claim whose prefill has ended, and the time in which a prefill instance takes the connection.
	claimTime = 10 * time.Second
	// maxClaim bounds the body of an answer to a claim.
	maxClaim = 4 << 10
)

// leaseClaim is the body of a claim. Key says whose blocks of which request are wanted.
type leaseClaim struct {
	Key    string `json:"key"`
	Prompt uint64 `json:"prompt"`
	// Room waits for the prefill to begin and end.
	Room bool `json:"room"`
}

// leaseAnswer is the body of the answer to a claim.
type leaseAnswer struct {
	Tokens int `json:"tokens"`
	// Consumed says that the lease was claimed before.
	Consumed bool `json:"consumed,omitempty"`
}

// errNoPeer says that the prefill instance does not answer.
var errNoPeer = errors.New("no prefill instance answers")

// digestTokens identifies a prompt.
func digestTokens(tokens []kv.Token) uint64 {
	h := fnv.New64a()
	var b [4]byte
	for _, t := range tokens {
		b[0], b[1], b[2], b[3] = byte(t), byte(t>>8), byte(t>>16), byte(t>>24)
		_, _ = h.Write(b[:]) // never fails
	}
	return h.Sum64()
}

// openLease adds a lease whose prefill runs; false if there is one of that key, or no room.
func (s *Server) openLease(key string, prompt []kv.Token) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLeasesLocked(time.Now())
	if _, used := s.mu.leases[key]; used || len(s.mu.leases) >= maxLeases {
		return false
	}
	s.mu.leases[key] = &lease{prompt: digestTokens(prompt), tokens: len(prompt), ready: make(chan struct{})}
	close(s.mu.leased)
	s.mu.leased = make(chan struct{})
	return true
}

// keepLease ends the prefill of a lease: it waits for a decode.
func (s *Server) keepLease(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.mu.leases[key]; l != nil && l.end.IsZero() {
		l.end = time.Now().Add(leaseTime)
		close(l.ready)
	}
}

// dropLease removes a lease whose prefill failed.
func (s *Server) dropLease(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLeaseLocked(key)
}

// dropLeases removes all leases: the blocks are gone.
func (s *Server) dropLeases() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.mu.leases {
		s.removeLeaseLocked(key)
	}
}

func (s *Server) removeLeaseLocked(key string) {
	if l := s.mu.leases[key]; l != nil {
		if l.end.IsZero() {
			close(l.ready) // waiting calls find that it is gone
		}
		delete(s.mu.leases, key)
	}
}

// expireLeasesLocked drops the expired leases.
func (s *Server) expireLeasesLocked(now time.Time) {
	for key, l := range s.mu.leases {
		if !l.end.IsZero() && now.After(l.end) {
			delete(s.mu.leases, key)
		}
	}
}

// TransferStats counts transfers of blocks between instances.
type TransferStats struct {
	// Leases are kept for a decode now. Sent were fetched from here, and Received by this instance.
	Leases, Sent, Received int
	// Missed are decodes of this instance which fetched nothing, and Reused claims of what was fetched from here before.
	Missed, Reused int
}

// TransferStats returns the counts.
func (s *Server) TransferStats() TransferStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLeasesLocked(time.Now())
	return TransferStats{len(s.mu.leases), s.mu.sent, s.mu.received, s.mu.missed, s.mu.reused}
}

// EndLeases ends all leases, as if their time were over.
func (s *Server) EndLeases() { s.dropLeases() }

// postTransfer serves a claim. The answer's status is 404 if there is no such lease.
func (s *Server) postTransfer(w http.ResponseWriter, r *http.Request) {
	var q leaseClaim
	if !s.readBody(w, r, &q) {
		return
	}
	answer, ok := s.takeLease(r.Context(), &q)
	if !ok {
		s.refuseRequest(w, http.StatusNotFound, "no such lease")
		return
	}
	writeJSON(w, http.StatusOK, &answer)
}

// takeLease ends a lease for the decode which claims it.
func (s *Server) takeLease(ctx context.Context, q *leaseClaim) (answer leaseAnswer, ok bool) {
	if q.Room && !s.awaitPrefill(ctx, q.Key) {
		return answer, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLeasesLocked(time.Now())
	if s.mu.consumed[q.Key] {
		s.mu.reused++
		return leaseAnswer{Consumed: true}, true
	}
	l := s.mu.leases[q.Key]
	if l == nil || l.end.IsZero() || q.Prompt != anyPrompt && l.prompt != q.Prompt {
		return answer, false
	}
	delete(s.mu.leases, q.Key)
	if !q.Room && len(s.mu.consumed) < maxLeases { // the engines which meet in a room number it
		s.mu.consumed[q.Key] = true
	}
	s.mu.sent++
	return leaseAnswer{Tokens: l.tokens}, true
}

// awaitPrefill waits until a prefill has begun, for at most RoomWait, and ended.
func (s *Server) awaitPrefill(ctx context.Context, key string) bool {
	late := time.NewTimer(s.cfg.RoomWait)
	defer late.Stop()
	for {
		s.mu.Lock()
		l, changed := s.mu.leases[key], s.mu.leased
		s.mu.Unlock()
		if l != nil {
			select {
			case <-l.ready:
				return true
			case <-ctx.Done():
				return false
			}
		}
		select {
		case <-changed:
		case <-late.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// claimLease claims a lease at another instance, and returns how many tokens of the prompt it covers. The error is
// errNoPeer if nothing answers there.
func claimLease(ctx context.Context, addr string, q *leaseClaim) (answer leaseAnswer, err error) {
	limit := claimTime
	if q.Room {
		limit = leaseTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/admin/transfer", bytes.NewReader(marshalJSON(q)))
	if err != nil {
		return answer, err
	}
	client := http.Client{
		Transport:     &http.Transport{DialContext: (&net.Dialer{Timeout: claimTime}).DialContext, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	res, err := client.Do(req)
	if err != nil {
		return answer, fmt.Errorf("%w: %w", errNoPeer, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return answer, fmt.Errorf("claim at %s: %s", addr, res.Status)
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, maxClaim))
	if err == nil {
		err = json.Unmarshal(data, &answer)
	}
	if err == nil && answer.Tokens < 1 && !answer.Consumed {
		err = errors.New("a lease without tokens")
	}
	return answer, err
}

// listenAddr is the address at which other instances find this one.
func (s *Server) listenAddr() (host string, port int) {
	host, text, _ := net.SplitHostPort(s.listener.Addr().String()) // a listener's address is valid
	port, _ = strconv.Atoi(text)
	return host, port
}

// isOwnAddress reports whether an address in a request is this server's.
func (s *Server) isOwnAddress(host string, port int) bool {
	own, ownPort := s.listenAddr()
	if port != ownPort {
		return false
	}
	at := net.ParseIP(own)
	if ip := net.ParseIP(host); ip != nil {
		return ip.Equal(at) || at.IsUnspecified() && isLocalIP(ip)
	}
	name, _ := os.Hostname() // "" is no name in a request
	return host == own || host == "localhost" && (at.IsLoopback() || at.IsUnspecified()) || host != "" && host == name && at.IsUnspecified()
}

// isLocalIP reports whether an address is of this machine.
func isLocalIP(ip net.IP) bool {
	if ip.IsLoopback() || ip.IsUnspecified() {
		return true
	}
	addrs, _ := net.InterfaceAddrs() // without them no other address is local
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
			return true
		}
	}
	return false
}
