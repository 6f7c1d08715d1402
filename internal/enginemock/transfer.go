package enginemock

import (
	"encoding/json"
	"net"
	"strconv"
	"time"

	"penstock/core/splitmix"
)

// transferParams are vLLM's kv_transfer_params of its NIXL connector.
type transferParams struct {
	RemoteDecode  bool   `json:"do_remote_decode"`
	RemotePrefill bool   `json:"do_remote_prefill"`
	RequestID     string `json:"remote_request_id"`
	EngineID      string `json:"remote_engine_id"`
	Tokens        int    `json:"remote_num_tokens"`
}

// leaseTime is how long a prefill keeps blocks for a decode (kv_lease_duration).
const leaseTime = 30 * time.Second

// maxLeases bounds the leases which are kept.
const maxLeases = 1 << 16

// transferKV behaves as a prefill or a decode instance. It returns the response's parameters for the other
// instance, and how many tokens were cached or transferred. A prefill that did not end by length returns
// none, since there is nothing to continue; a decode that does not know the other's request computes
// everything again without reporting it.
func (s *Server) transferKV(c *apiCall, reason string, cached int) (answer any, now int) {
	raw := nilIfNull(c.request.KVTransfer)
	if raw == nil {
		return nil, cached
	}
	var p transferParams
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, cached
	}
	prompt := c.prompts[0].tokens
	switch {
	case p.RemotePrefill:
		if !s.dialect.legacy && p.RequestID == "" || p.EngineID == "" {
			return nil, cached
		}
		return nil, max(cached, len(prompt)-1)
	case !p.RemoteDecode || reason != reasonLength:
		return nil, cached
	}
	s.addLease(c.id)
	host, port := s.sideChannel()
	blocks := make([]int, 0, len(prompt)/s.card.BlockSize+1)
	for i := 0; i < len(prompt); i += s.card.BlockSize {
		blocks = append(blocks, int(splitmix.Mix(s.nextRandom())%uint64(max(s.card.Blocks, 1))))
	}
	out := object{
		"do_remote_prefill": true, "do_remote_decode": false, "remote_engine_id": s.engineID(c.rank.index),
		"remote_host": host, "remote_port": port, "tp_size": 1,
	}
	if !s.dialect.legacy {
		out["remote_block_ids"], out["remote_request_id"], out["remote_num_tokens"] = [][]int{blocks}, c.id, len(prompt)
	} else {
		out["remote_block_ids"] = blocks
	}
	return out, cached
}

// engineID names a rank's engine for other instances.
func (s *Server) engineID(rank int) string {
	return strconv.FormatUint(splitmix.Mix(s.cfg.Seed^0xe1d), 16) + "_dp" + strconv.Itoa(rank)
}

// sideChannel is the address of the NIXL side channel.
func (s *Server) sideChannel() (string, int) {
	host, _, err := net.SplitHostPort(s.listener.Addr().String())
	if err != nil {
		return "127.0.0.1", 5600
	}
	return host, 5600
}

// addLease records that blocks are kept for a decode. Leases only expire: mock instances do not communicate.
func (s *Server) addLease(id string) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLocked(now)
	if len(s.mu.leases) < maxLeases {
		s.mu.leases[id] = now.Add(leaseTime)
	}
}

// expireLocked drops the expired leases.
func (s *Server) expireLocked(now time.Time) {
	for id, end := range s.mu.leases {
		if now.After(end) {
			delete(s.mu.leases, id)
		}
	}
}

// countLeases counts the current leases.
func (s *Server) countLeases() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLocked(time.Now())
	return len(s.mu.leases)
}

// addContextParams behaves as TensorRT-LLM's context server: its choices carry the parameters for a
// generation server.
func (s *Server) addContextParams(c *apiCall, out object, _ string, _ *usage) {
	raw := nilIfNull(c.request.Disaggregated)
	if raw == nil {
		return
	}
	var p struct {
		Type string `json:"request_type"`
		ID   *int64 `json:"disagg_request_id"`
	}
	if json.Unmarshal(raw, &p) != nil || p.Type != "context_only" {
		return
	}
	id := int64(s.nextRandom() >> 12)
	if p.ID != nil {
		id = *p.ID
	}
	for _, choice := range out["choices"].([]object) {
		choice["disaggregated_params"] = object{
			"request_type": "context_only", "ctx_request_id": id, "first_gen_tokens": choice["token_ids"],
			"encoded_opaque_state": "bWltaWM=", "draft_tokens": nil, "ctx_dp_rank": c.rank.index,
		}
	}
}
