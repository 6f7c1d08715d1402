package node

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"path/filepath"

	"github.com/zeebo/xxh3"

	"penstock/core/kv"
	"penstock/internal/config"
)

// idFile keeps a worker's id in its data directory.
const idFile = "penstock.worker"

// workerID returns this process's id in the fleet: the configured id, or the id in the data directory, where
// the first start writes a random one, or a random id. The caller holds the directory's lock.
func workerID(cfg *config.Loaded) (kv.WorkerID, error) {
	switch {
	case cfg.Fleet.WorkerID != 0:
		return kv.WorkerID(cfg.Fleet.WorkerID), nil
	case cfg.DataDir == "":
		return drawID(), nil
	}
	path := filepath.Join(cfg.DataDir, idFile)
	n, err := readNumber(path, uint64(kv.MaxWorkerID), "a worker's id")
	if err != nil || n != 0 {
		return kv.WorkerID(n), err
	}
	id := drawID()
	if err := replaceFile(path, fmt.Appendf(nil, "%d\n", id)); err != nil {
		return 0, fmt.Errorf("data directory %s: %w; check its space and permissions", cfg.DataDir, err)
	}
	return id, nil
}

// firstDrawn keeps random ids apart from the small numbers of workers which share a process, and from ids
// which people choose.
const firstDrawn = 1 << 32

// drawID returns one of 2^53 - 2^32 ids: in a fleet of 10,000 random ids, a collision occurs in one of 180
// million fleets.
func drawID() kv.WorkerID {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return firstDrawn + kv.WorkerID(binary.LittleEndian.Uint64(b[:])%(uint64(kv.MaxWorkerID)-firstDrawn+1))
}

// modelID returns the id under which a router registers for a model: the same after a restart, and different
// for every model.
func modelID(router kv.WorkerID, model string) kv.WorkerID {
	h := xxh3.HashStringSeed(model, uint64(router))
	return firstDrawn + kv.WorkerID(h%(uint64(kv.MaxWorkerID)-firstDrawn+1))
}

// rankID returns the id of a data-parallel rank of a worker's engine: the worker's own for the first rank,
// for others a derived id which is the same after a restart.
func rankID(id kv.WorkerID, rank int) kv.WorkerID {
	if rank == 0 {
		return id
	}
	return modelID(id, fmt.Sprintf("rank %d", rank))
}
