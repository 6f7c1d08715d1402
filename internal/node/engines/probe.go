package engines

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"

	"penstock/internal/backoff"
	"penstock/internal/config"
	"penstock/internal/engine/remote"
)

const (
	// lookTimeout bounds one request to an engine before it is opened.
	lookTimeout = 3 * time.Second
	// maxLook bounds its response in bytes.
	maxLook = 4 << 20
	// sayAfter is how long an engine may stay silent before the log says so, and sayEvery the least interval
	// between such messages.
	sayAfter = 3 * time.Second
	sayEvery = 30 * time.Second
)

// Facts is what an engine's HTTP API reports of itself.
type Facts struct {
	// model is its first model, and root what it was started with: a directory on the engine's host, or a
	// Hugging Face hub name.
	Model, root string
	// ranks is its number of data-parallel ranks; 0 if it does not report it.
	ranks int
}

// NotReadyError is an engine that does not serve yet, and may soon.
type NotReadyError struct{ Reason string }

// Error implements error.
func (e *NotReadyError) Error() string { return e.Reason }

// Prober sends simple requests to one engine.
type Prober struct {
	spec *config.RemoteEngine
	key  string
	http *http.Client
}

// NewProber returns the prober of one engine, with its key; "" if it needs none.
func NewProber(of *config.RemoteEngine, key string) *Prober {
	// A key is for one server: redirects are not followed.
	return &Prober{spec: of, key: key, http: &http.Client{
		Timeout: lookTimeout, Transport: &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// probeEngine asks an engine whether it serves, and what.
func probeEngine(ctx context.Context, of *config.RemoteEngine, key string) (Facts, error) {
	return NewProber(of, key).Probe(ctx)
}

// get returns up to maxLook bytes at a path of the engine, and the status; the body only of a response with 200.
func (a *Prober) get(ctx context.Context, path string) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.spec.URL.String()+path, nil)
	if err != nil {
		return 0, nil, err
	}
	if a.key != "" {
		req.Header.Set("Authorization", "Bearer "+a.key)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		body, err = io.ReadAll(io.LimitReader(resp.Body, maxLook))
	}
	return resp.StatusCode, body, err
}

// getJSON reads the JSON at a path of the engine, and returns the status.
func (a *Prober) getJSON(ctx context.Context, path string, out any) (status int, err error) {
	status, body, err := a.get(ctx, path)
	if err == nil && status == http.StatusOK {
		if err = json.Unmarshal(body, out); err != nil {
			err = fmt.Errorf("its answer to %s is not JSON: %w", path, err)
		}
	}
	return status, err
}

// Probe asks an engine whether it serves, and what. An engine that may serve later is a *notReadyError; any
// other error is for the operator.
func (a *Prober) Probe(ctx context.Context) (Facts, error) {
	if status, _, err := a.get(ctx, "/health"); status == 0 {
		return Facts{}, &NotReadyError{DescribeError(err)}
	} else if status >= 500 {
		return Facts{}, &NotReadyError{fmt.Sprintf("loading (%d)", status)}
	}
	var list struct {
		Data []struct {
			ID     string `json:"id"`
			Root   string `json:"root"`
			Parent string `json:"parent"`
			Owner  string `json:"owned_by"`
		} `json:"data"`
	}
	status, err := a.getJSON(ctx, "/v1/models", &list)
	switch {
	case err != nil && status == 0:
		return Facts{}, &NotReadyError{DescribeError(err)}
	case err != nil:
		return Facts{}, fmt.Errorf("%w; is this the address of %s?", err, a.spec.Kind)
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		if a.key == "" {
			return Facts{}, fmt.Errorf("it asks for a key (%d): put that into a file and name it with api-key-file=FILE", status)
		}
		return Facts{}, fmt.Errorf("it does not take the key in %s (%d)", a.spec.APIKeyFile, status)
	case status >= 500:
		return Facts{}, &NotReadyError{fmt.Sprintf("loading (%d)", status)}
	case status != http.StatusOK:
		return Facts{}, fmt.Errorf("it answers %d to %s/v1/models: is the path of the URL right, and is it %s?", status, a.spec.URL, a.spec.Kind)
	}
	var found Facts
	for _, m := range list.Data {
		if m.Parent == "" { // adapters have one
			if kind := kindsByOwner[m.Owner]; kind != "" && kind != a.spec.Kind {
				return Facts{}, fmt.Errorf("it says that it is %s, and the settings that it is %s: write %s=%s", kind, a.spec.Kind, kind, a.spec.URL)
			}
			found.Model, found.root = m.ID, m.Root
			break
		}
	}
	if found.Model == "" {
		return Facts{}, &NotReadyError{"it serves no model yet"}
	}
	a.probeDetails(ctx, &found)
	return found, nil
}

// kindsByOwner are the kinds of the engines which use a name as the owner of their models. Most engines would
// serve as another kind, but badly: their events and load are at other paths.
var kindsByOwner = map[string]string{"vllm": config.EngineVLLM, "sglang": config.EngineSGLang, "tensorrt_llm": config.EngineTRTLLM, "llamacpp": config.EngineLlamaCpp, "penstock-python": config.EnginePython}

// probeDetails reads what only engines of one kind report. What is not reported stays unchanged.
func (a *Prober) probeDetails(ctx context.Context, found *Facts) {
	switch a.spec.Kind {
	case config.EngineVLLM:
		_, metrics, _ := a.get(ctx, "/metrics") // without them the ranks are unknown
		found.ranks = vllmRanks(metrics)
	case config.EngineSGLang:
		a.probeSGLang(ctx, found)
	}
}

// probeSGLang asks SGLang for its tokenizer and its ranks, at the paths of newer and older versions.
func (a *Prober) probeSGLang(ctx context.Context, found *Facts) {
	var info struct {
		Tokenizer string `json:"tokenizer_path"`
		Model     string `json:"model_path"`
		Ranks     int    `json:"dp_size"`
	}
	first := func(paths ...string) {
		for _, path := range paths {
			if status, err := a.getJSON(ctx, path, &info); err == nil && status == http.StatusOK {
				return
			}
		}
	}
	first("/model_info", "/get_model_info")
	first("/server_info", "/get_server_info")
	found.root = cmp.Or(info.Tokenizer, info.Model, found.root)
	found.ranks = max(info.Ranks, 0)
}

// vllmRanks counts the data-parallel ranks whose caches are in vLLM's metrics; 0 if none.
func vllmRanks(metrics []byte) int {
	ranks := map[string]bool{}
	remote.EachSample(metrics, "vllm:cache_config_info", func(s remote.MetricSample) {
		if rank := s.LabelValue("engine"); rank != nil {
			ranks[string(rank)] = true
		}
	})
	return len(ranks)
}

// DescribeError says in a few words why an engine did not answer.
func DescribeError(err error) string {
	var timeout net.Error
	var name *net.DNSError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there (connection refused)"
	case errors.As(err, &name):
		return fmt.Sprintf("the name %s is not known here", name.Name)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("no answer within %v", lookTimeout)
	}
	var inner interface{ Unwrap() error }
	if errors.As(err, &inner) && inner.Unwrap() != nil {
		err = inner.Unwrap() // without the method and the URL, which the caller adds
	}
	return err.Error()
}

// Version returns the engine's version; "" if it reports none.
func (a *Prober) Version(ctx context.Context) string {
	var says struct {
		Version string `json:"version"`
		Build   string `json:"build_info"`
	}
	paths := map[string][]string{
		config.EngineVLLM:     {"/version"},
		config.EngineTRTLLM:   {"/version"},
		config.EngineSGLang:   {"/server_info", "/get_server_info"},
		config.EngineLlamaCpp: {"/props"},
	}
	for _, path := range paths[a.spec.Kind] {
		if _, err := a.getJSON(ctx, path, &says); err == nil && says.Version+says.Build != "" {
			break
		}
	}
	const longest = 60
	version := says.Version + says.Build
	return version[:min(len(version), longest)]
}

// awaitReady waits until the engine serves, and logs at intervals that it does not.
func (e *remoteEngine) awaitReady(ctx context.Context, key string) (Facts, error) {
	began := time.Now()
	var said time.Time
	pause := backoff.Backoff{Min: 250 * time.Millisecond, Max: 2 * time.Second}
	for {
		found, err := probeEngine(ctx, &e.spec, key)
		var later *NotReadyError
		if !errors.As(err, &later) || ctx.Err() != nil {
			return found, err
		}
		e.setNotServing(StateWaiting, later.Reason)
		if after := time.Since(began); after >= sayAfter && time.Since(said) >= sayEvery {
			said = time.Now()
			args := []any{"for", after.Round(time.Second), "error", later.Reason}
			if e.set.cfg.LastLine != nil {
				args = append(args, "last_line", e.set.cfg.LastLine())
			}
			e.log.Info("waiting for the engine", args...)
		}
		if pause.Wait(ctx) != nil {
			return Facts{}, context.Cause(ctx)
		}
	}
}
