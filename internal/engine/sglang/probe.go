package sglang

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"penstock/core/media"
	"penstock/internal/engine/remote"
)

// serverProbe finds out what a server offers.
type serverProbe struct {
	remote.Probe
	currentAdapters atomic.Pointer[[]string] // the current adapters
	server          serverInfo
}

// serverInfo is the relevant part of /server_info: the settings of the server, and values computed from them.
type serverInfo struct {
	Version           string    `json:"version"`
	ModelPath         string    `json:"model_path"`
	PageSize          int       `json:"page_size"`
	DPSize            int       `json:"dp_size"`
	ContextLength     int       `json:"context_length"`
	MaxTotalTokens    int       `json:"max_total_num_tokens"`
	DisableRadixCache bool      `json:"disable_radix_cache"`
	EnableMetrics     bool      `json:"enable_metrics"`
	CacheReport       bool      `json:"enable_cache_report"`
	EnableLoRA        bool      `json:"enable_lora"`
	GrammarBackend    string    `json:"grammar_backend"`
	KVEvents          *kvEvents `json:"kv_events"`
	States            []struct {
		MaxTotalTokens int `json:"max_total_num_tokens"`
	} `json:"internal_states"`
}

// kvEvents is the announcement of cache events by newer versions.
type kvEvents struct {
	Publisher string `json:"publisher"`
	Host      string `json:"endpoint_host"`
	Port      int    `json:"endpoint_port_base"`
	// Replay is the replay port of rank 0 on the same host; since 0.5.22, 0 if there is none.
	Replay    int `json:"replay_endpoint_port_base"`
	BlockSize int `json:"block_size"`
	DPSize    int `json:"dp_size"`
}

// pageSize returns the size of a page in tokens; 0 if not reported.
func (p *serverProbe) pageSize() int {
	if ev := p.server.KVEvents; ev != nil && ev.BlockSize > 0 {
		return ev.BlockSize
	}
	return max(p.server.PageSize, 0)
}

// contextLength returns the limit of prompt plus output tokens; 0 if not reported.
func (p *serverProbe) contextLength() int {
	if p.Length > 0 {
		return p.Length
	}
	return max(p.server.ContextLength, 0)
}

// tokenCapacity returns the cache capacity of a rank in tokens; 0 if not reported.
func (p *serverProbe) tokenCapacity() int {
	if p.server.MaxTotalTokens > 0 {
		return p.server.MaxTotalTokens
	}
	if len(p.server.States) > 0 {
		return max(p.server.States[0].MaxTotalTokens, 0)
	}
	return 0
}

// adapterLister returns a function that lists the adapters; nil if the server takes none.
func (p *serverProbe) adapterLister() func(context.Context) ([]string, error) {
	if len(p.Adapters) == 0 && !p.server.EnableLoRA {
		return nil
	}
	return func(ctx context.Context) ([]string, error) {
		now, err := p.Client.ListModels(ctx)
		if err != nil {
			return nil, err
		}
		names := remote.AdapterNames(now)
		p.currentAdapters.Store(&names)
		return names, nil
	}
}

// findModel reads the served model and its adapters.
func (p *serverProbe) findModel(ctx context.Context) error {
	err := p.FindModel(ctx)
	p.currentAdapters.Store(&p.Adapters)
	return err
}

// mediaKinds returns the media that the model takes, as far as the server reports them.
func (p *serverProbe) mediaKinds(ctx context.Context) (kinds []string) {
	var info struct {
		Images bool `json:"has_image_understanding"`
		Sounds bool `json:"has_audio_understanding"`
	}
	for _, path := range []string{"/model_info", "/get_model_info"} {
		err := p.Client.DoJSON(ctx, &remote.Call{Method: http.MethodGet, Path: path}, &info)
		if err == nil || !remote.IsNotFound(err) {
			break
		}
	}
	if info.Sounds {
		kinds = append(kinds, media.Audio.String())
	}
	if info.Images {
		kinds = append(kinds, media.Image.String())
	}
	return kinds
}

// findServer reads the server's settings.
func (p *serverProbe) findServer(ctx context.Context) (err error) {
	for _, path := range []string{"/server_info", "/get_server_info"} {
		err = p.Client.DoJSON(ctx, &remote.Call{Method: http.MethodGet, Path: path}, &p.server)
		if !remote.IsNotFound(err) {
			return err
		}
	}
	return fmt.Errorf("the engine at %s has no /server_info; is it SGLang? %w", p.Config.Spec.URL.Host, err)
}

// releaseVersion is a release of SGLang: 0.5.17 is {0, 5, 17}.
type releaseVersion [3]int

// The releases that changed how the engine treats salts, and what it reports of its cache.
var (
	extraKeyVersion        = releaseVersion{0, 5, 11} // extra_key reaches the cache; earlier neither field did
	announcedEventsVersion = releaseVersion{0, 5, 13} // /server_info announces where events are published
	cacheSaltVersion       = releaseVersion{0, 5, 18} // cache_salt reaches the cache, and events contain it; earlier it was ignored
	adapterEventsVersion   = releaseVersion{0, 5, 22} // events contain LoRA adapters; earlier blocks with the same tokens had one hash
)

// parseVersion parses the version reported by a server: 0.5.17, 0.5.6.post2, 0.5.18rc1. ok is false if it is
// not a release, such as 0.0.0.dev1 of a build from a checkout.
func parseVersion(text string) (v releaseVersion, ok bool) {
	parts := strings.SplitN(strings.TrimPrefix(text, "v"), ".", 4)
	if len(parts) < 3 || len(parts) == 4 && strings.HasPrefix(parts[3], "dev") {
		return v, false
	}
	for i := range v {
		digits := parts[i]
		if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); i == 2 && end > 0 {
			digits = digits[:end] // 18rc1
		}
		n, err := strconv.Atoi(digits)
		if err != nil || n < 0 {
			return releaseVersion{}, false
		}
		v[i] = n
	}
	return v, v != releaseVersion{}
}

func (v releaseVersion) isBefore(o releaseVersion) bool { return slices.Compare(v[:], o[:]) < 0 }

// hidesAdapters reports whether the events of a version lack LoRA adapters. A version that is not a release
// counts as new.
func hidesAdapters(text string) bool {
	v, ok := parseVersion(text)
	return ok && v.isBefore(adapterEventsVersion)
}

// saltFields returns the fields of /generate that isolate salts in a version, and whether the version ignores
// both or a proof must decide. An unknown version gets both fields, since it ignores unknown ones.
func saltFields(text string) ([]string, remote.SaltSupport) {
	v, ok := parseVersion(text)
	switch {
	case !ok:
		return []string{"cache_salt", "extra_key"}, remote.SaltsUnknown
	case v.isBefore(extraKeyVersion):
		return []string{"extra_key"}, remote.SaltsIgnored
	case v.isBefore(cacheSaltVersion):
		return []string{"extra_key"}, remote.SaltsUnknown
	}
	return []string{"cache_salt"}, remote.SaltsUnknown
}
