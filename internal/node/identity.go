package node

import (
	"fmt"
	"path/filepath"

	"github.com/zeebo/xxh3"

	"penstock/core/kv"
	"penstock/internal/config"
	"penstock/internal/plane/disco"
	"penstock/internal/reload"
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
		return disco.DrawID(), nil
	}
	path := filepath.Join(cfg.DataDir, idFile)
	n, err := readNumber(path, uint64(kv.MaxWorkerID), "a worker's id")
	if err != nil || n != 0 {
		return kv.WorkerID(n), err
	}
	id := disco.DrawID()
	if err := reload.ReplaceFile(path, fmt.Appendf(nil, "%d\n", id)); err != nil {
		return 0, fmt.Errorf("data directory %s: %w; check its space and permissions", cfg.DataDir, err)
	}
	return id, nil
}

// modelID returns the id under which a router registers for a model: the same after a restart, and different
// for every model.
func modelID(router kv.WorkerID, model string) kv.WorkerID {
	h := xxh3.HashStringSeed(model, uint64(router))
	return disco.FirstDrawnID + kv.WorkerID(h%(uint64(kv.MaxWorkerID)-disco.FirstDrawnID+1))
}

// rankID returns the id of a data-parallel rank of a worker's engine: the worker's own for the first rank,
// for others a derived id which is the same after a restart.
func rankID(id kv.WorkerID, rank int) kv.WorkerID {
	if rank == 0 {
		return id
	}
	return modelID(id, fmt.Sprintf("rank %d", rank))
}
