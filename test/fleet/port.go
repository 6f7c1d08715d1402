package fleet

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Ports reserves free ports of 127.0.0.1 below the range for outgoing connections, so that a restarted
// process finds its port free again.
type Ports struct {
	mu       sync.Mutex
	r        *rand.Rand
	reserved map[int]bool
}

// NewPorts returns an allocator; different seeds start at different ports.
func NewPorts(seed uint64) *Ports {
	return &Ports{r: rand.New(rand.NewPCG(seed, 0x706f727473)), reserved: map[int]bool{}}
}

// The range of ports.
const (
	lowestPort  = 18000
	highestPort = 32000
)

// ReserveAddr returns HOST:PORT which is free and was not returned before.
func (p *Ports) ReserveAddr(host string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range 1000 {
		port := lowestPort + p.r.IntN(highestPort-lowestPort)
		if p.reserved[port] {
			continue
		}
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue // in use
		}
		if err := ln.Close(); err != nil {
			return "", err
		}
		p.reserved[port] = true
		return net.JoinHostPort(host, fmt.Sprint(port)), nil
	}
	return "", fmt.Errorf("no free port found between %d and %d", lowestPort, highestPort)
}
