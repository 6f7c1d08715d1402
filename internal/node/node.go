// Package node is the composition root: the one place that names concrete implementations, starts them in
// dependency order, and stops them in the reverse order.
package node

import (
	"runtime"
	"time"

	"penstock/internal/node/engines"

	"penstock/core/kv"
	"penstock/internal/config"
)

// Ready describes a node that serves.
type Ready struct {
	URL        string `json:"url"`
	Model      string `json:"model"`
	Chat       bool   `json:"chat"` // whether the model has a chat template
	Engine     string `json:"engine"`
	Simulation string `json:"simulation,omitempty"` // description of simulated timing, for people; "" for real engines
	// Workers take requests. PrefillWorkers and EncodeWorkers have these roles.
	Workers        int `json:"workers"`
	PrefillWorkers int `json:"prefill_workers,omitempty"`
	EncodeWorkers  int `json:"encode_workers,omitempty"`

	Blocks    int `json:"blocks"` // of each worker
	BlockSize int `json:"block_size"`
	// Media are the kinds of media that the model accepts.
	Media      []string `json:"media,omitempty"`
	RouterMode string   `json:"router_mode"`
	NATS       string   `json:"nats,omitempty"` // URL, if others can connect
	Keys       bool     `json:"keys,omitempty"` // whether requests must present a key
	Access     Access   `json:"-"`
	Planner    bool     `json:"planner,omitempty"` // whether it answers GET /v1/plan
	// Engines are the remote engines. Model, Blocks and BlockSize then come from the first which serves,
	// Workers the sum of all.
	Engines []engines.Status `json:"engines,omitempty"`
	Took    time.Duration    `json:"took_ns"` // from the call to readiness
}

// Started describes a process of one role that is running.
type Started struct {
	Role     string      `json:"role"`                // frontend, worker or router
	URL      string      `json:"url,omitempty"`       // of HTTP
	Addr     string      `json:"addr,omitempty"`      // on the request plane
	WorkerID kv.WorkerID `json:"worker_id,omitempty"` // in the fleet
	Model    string      `json:"model,omitempty"`
	NATS     string      `json:"nats,omitempty"` // URL, if a server is embedded
	Access   Access      `json:"-"`
	// Engines holds the worker's engine, if it is remote.
	Engines []engines.Status `json:"engines,omitempty"`
	Took    time.Duration    `json:"took_ns"` // from the call to readiness
}

func (p *process) startedStatus() Started {
	return Started{Role: string(p.cfg.Command), URL: p.httpURL(), NATS: p.planes.NATSURL(), Access: p.clientAccess(), Took: time.Since(p.startedAt)}
}

// Features lists the optional parts of this build.
func Features() []string {
	features := []string{"engine:" + config.EngineTiny, "engine:" + config.EngineSim, "nats:embedded"}
	for _, kind := range config.RemoteKinds() {
		features = append(features, "engine:"+kind)
	}
	if simd {
		features = append(features, "kernel:simd-"+runtime.GOARCH)
	}
	return features
}
