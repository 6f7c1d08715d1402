package media

import (
	"time"

	"penstock/internal/media/shm"
)

// NewShmLender returns a Lender of shared-memory segments, each leased for at most longest.
func NewShmLender(l *shm.Lender, longest time.Duration) Lender { return shmLender{l, longest} }

type shmLender struct {
	lender   *shm.Lender
	maxLease time.Duration
}

// Lend implements Lender.
func (l shmLender) Lend(data []byte) (string, func(), error) {
	lease, err := l.lender.Lend(data, l.maxLease)
	if err != nil {
		return "", nil, err
	}
	// A segment which cannot be removed is swept by the next process.
	return lease.Name(), func() { _ = lease.Release() }, nil
}
