package media

import (
	"time"

	"penstock/internal/media/shm"
)

// NewShmLender returns a Lender of shared-memory segments, each leased for at most longest.
func FromLender(l *shm.Lender, longest time.Duration) Lender { return lent{l, longest} }

type lent struct {
	lender  *shm.Lender
	longest time.Duration
}

// Lend implements Lender.
func (l lent) Lend(data []byte) (string, func(), error) {
	lease, err := l.lender.Lend(data, l.longest)
	if err != nil {
		return "", nil, err
	}
	// A segment which cannot be removed is swept by the next process.
	return lease.Name(), func() { _ = lease.Release() }, nil
}
