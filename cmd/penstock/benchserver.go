package main

import (
	"context"
	"fmt"
	"net/url"
)

// benchServer is what a Penstock server reports of itself.
type benchServer struct {
	mode      string // routing mode; "" if not known
	workers   int    // 0 if not known
	blocks    int    // of the worker with the fewest, among those which reported; 0 if none did
	blockSize int    // tokens; 0 if not known
}

// maxWorkerBlocks bounds a plausible number of blocks; larger values count as not known.
const maxWorkerBlocks = 1 << 30

// queryBenchServer asks the router API about the workers, and about the routing decision of the request with
// the given id. The result is empty for another server, or one which restricts that API to administrators.
func (c *apiClient) queryBenchServer(ctx context.Context, model, requestID string) benchServer {
	var s benchServer
	var table struct {
		Rows []workerRow `json:"rows"`
	}
	if c.getJSON(ctx, "/v1/router/workers", &table) != nil {
		return s
	}
	for i := range table.Rows {
		r := &table.Rows[i]
		if r.Model != model || r.State != "ready" {
			continue
		}
		s.workers++
		if r.Load.Reported == nil { // the worker has just been added
			continue
		}
		total := r.Load.Reported.TotalBlocks
		if total >= 1 && total <= maxWorkerBlocks && (s.blocks == 0 || total < s.blocks) {
			s.blocks = total
		}
	}
	var decision struct {
		Attempts []struct {
			Mode      string `json:"mode"`
			BlockSize int    `json:"block_size"`
		} `json:"attempts"`
	}
	if c.getJSON(ctx, "/v1/router/decisions?request_id="+url.QueryEscape(requestID), &decision) == nil && len(decision.Attempts) > 0 {
		last := decision.Attempts[len(decision.Attempts)-1]
		s.mode = last.Mode
		if last.BlockSize >= 2 && last.BlockSize <= 65536 {
			s.blockSize = last.BlockSize
		}
	}
	return s
}

// policyName returns the name of the run's policy.
func (s benchServer) policyName() string {
	if s.mode == "" {
		return "server"
	}
	return s.mode
}

func (s benchServer) String() string {
	if s.workers == 0 {
		return "server"
	}
	return fmt.Sprintf("%d workers, routed by %s", s.workers, printable(s.policyName()))
}
