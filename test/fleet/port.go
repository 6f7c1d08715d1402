package fleet

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Ports hands out ports of 127.0.0.1 that are free and below those that the
// system gives to outgoing connections, so that a process finds its own free
// again when it is restarted.
type Ports struct {
	mu sync.Mutex
	r  *rand.Rand
	in map[int]bool
}

// NewPorts returns an allocator; different seeds begin at different places.
func NewPorts(seed uint64) *Ports {
	return &Ports{r: rand.New(rand.NewPCG(seed, 0x706f727473)), in: map[int]bool{}}
}

// Ports are taken from here.
const (
	lowestPort  = 18000
	highestPort = 32000
)

// Addr returns HOST:PORT at which nobody listens now and that was not handed out
// before.
func (p *Ports) Addr(host string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range 1000 {
		port := lowestPort + p.r.IntN(highestPort-lowestPort)
		if p.in[port] {
			continue
		}
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue // somebody else's
		}
		if err := ln.Close(); err != nil {
			return "", err
		}
		p.in[port] = true
		return net.JoinHostPort(host, fmt.Sprint(port)), nil
	}
	return "", fmt.Errorf("no free port found between %d and %d", lowestPort, highestPort)
}
