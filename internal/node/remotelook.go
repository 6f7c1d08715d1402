package node

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
	// lookTimeout bounds one question to an engine before it is opened.
	lookTimeout = 3 * time.Second
	// maxLook bounds its answer in bytes.
	maxLook = 4 << 20
	// sayAfter is how long an engine may keep silent before the log says so, and sayEvery
	// how often it does so at most.
	sayAfter = 3 * time.Second
	sayEvery = 30 * time.Second
)

// lookedAt is what an engine says of itself to everybody.
type lookedAt struct {
	// model is its first model, and root what that was started with: a directory where the
	// engine runs, or a name of the Hugging Face hub.
	model, root string
	// ranks is how many data-parallel ranks it has; 0 if it does not say.
	ranks int
}

// notYet is an engine that does not serve yet, and may soon.
type notYet struct{ why string }

func (e *notYet) Error() string { return e.why }

// asker asks one engine simple questions.
type asker struct {
	of   *config.RemoteEngine
	key  string
	http *http.Client
}

func newAsker(of *config.RemoteEngine, key string) *asker {
	// A key is for one server: nobody is followed elsewhere with it.
	return &asker{of: of, key: key, http: &http.Client{
		Timeout: lookTimeout, Transport: &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// lookAt asks an engine whether it serves, and what.
func lookAt(ctx context.Context, of *config.RemoteEngine, key string) (lookedAt, error) {
	return newAsker(of, key).look(ctx)
}

// get reads the JSON at a path of the engine, if out is not nil, and returns the status.
func (a *asker) get(ctx context.Context, path string, out any) (status int, err error) {
	return a.ask(ctx, path, func(r io.Reader) error {
		if out == nil {
			return nil
		}
		if err := json.NewDecoder(io.LimitReader(r, maxLook)).Decode(out); err != nil {
			return fmt.Errorf("its answer to %s is not JSON: %w", path, err)
		}
		return nil
	})
}

// ask has read take the body of an answer of 200.
func (a *asker) ask(ctx context.Context, path string, read func(io.Reader) error) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.of.URL.String()+path, nil)
	if err != nil {
		return 0, err
	}
	if a.key != "" {
		req.Header.Set("Authorization", "Bearer "+a.key)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode, nil
	}
	return resp.StatusCode, read(resp.Body)
}

// look asks an engine whether it serves, and what. An engine that may serve later is a
// *notYet; anything else is for the operator.
func (a *asker) look(ctx context.Context) (lookedAt, error) {
	if status, err := a.get(ctx, "/health", nil); err != nil {
		return lookedAt{}, &notYet{whyNot(err)}
	} else if status >= 500 {
		return lookedAt{}, &notYet{fmt.Sprintf("loading (%d)", status)}
	}
	var list struct {
		Data []struct {
			ID     string `json:"id"`
			Root   string `json:"root"`
			Parent string `json:"parent"`
			Owner  string `json:"owned_by"`
		} `json:"data"`
	}
	status, err := a.get(ctx, "/v1/models", &list)
	switch {
	case err != nil && status == 0:
		return lookedAt{}, &notYet{whyNot(err)}
	case err != nil:
		return lookedAt{}, fmt.Errorf("%w; is this the address of %s?", err, a.of.Kind)
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		if a.key == "" {
			return lookedAt{}, fmt.Errorf("it asks for a key (%d): put that into a file and name it with api-key-file=FILE", status)
		}
		return lookedAt{}, fmt.Errorf("it does not take the key in %s (%d)", a.of.APIKeyFile, status)
	case status >= 500:
		return lookedAt{}, &notYet{fmt.Sprintf("loading (%d)", status)}
	case status != http.StatusOK:
		return lookedAt{}, fmt.Errorf("it answers %d to %s/v1/models: is the path of the URL right, and is it %s?", status, a.of.URL, a.of.Kind)
	}
	var found lookedAt
	for _, m := range list.Data {
		if m.Parent == "" { // adapters have one
			if kind := kindOf(m.Owner); kind != "" && kind != a.of.Kind {
				return lookedAt{}, fmt.Errorf("it says that it is %s, and the settings that it is %s: write %s=%s", kind, a.of.Kind, kind, a.of.URL)
			}
			found.model, found.root = m.ID, m.Root
			break
		}
	}
	if found.model == "" {
		return lookedAt{}, &notYet{"it serves no model yet"}
	}
	a.more(ctx, &found)
	return found, nil
}

// kindOf returns the kind of engine that calls itself so as the owner of its models; "" if none
// of ours does. As another kind, most of them would serve, and badly: their events and load are
// at other places.
func kindOf(owner string) string {
	switch owner {
	case "vllm":
		return config.EngineVLLM
	case "sglang":
		return config.EngineSGLang
	case "tensorrt_llm":
		return config.EngineTRTLLM
	case "llamacpp":
		return config.EngineLlamaCpp
	}
	return ""
}

// more asks what only engines of one kind say. What is not said stays as it is.
func (a *asker) more(ctx context.Context, found *lookedAt) {
	switch a.of.Kind {
	case config.EngineVLLM:
		found.ranks = vllmRanks(a.text(ctx, "/metrics"))
	case config.EngineSGLang:
		a.sglang(ctx, found)
	}
}

// sglang asks SGLang for its tokenizer and its ranks, at the paths of newer and older versions.
func (a *asker) sglang(ctx context.Context, found *lookedAt) {
	var info struct {
		Tokenizer string `json:"tokenizer_path"`
		Model     string `json:"model_path"`
		Ranks     int    `json:"dp_size"`
	}
	first := func(paths ...string) {
		for _, path := range paths {
			if status, err := a.get(ctx, path, &info); err == nil && status == http.StatusOK {
				return
			}
		}
	}
	first("/model_info", "/get_model_info")
	first("/server_info", "/get_server_info")
	found.root = cmp.Or(info.Tokenizer, info.Model, found.root)
	found.ranks = max(info.Ranks, 0)
}

// vllmRanks counts the data-parallel ranks whose caches vLLM's metrics tell of; 0 if none.
func vllmRanks(metrics []byte) int {
	ranks := map[string]bool{}
	remote.Samples(metrics, "vllm:cache_config_info", func(s remote.Sample) {
		if rank := s.Label("engine"); rank != nil {
			ranks[string(rank)] = true
		}
	})
	return len(ranks)
}

// text reads what is at a path of the engine, as far as it is short; nil if nothing is.
func (a *asker) text(ctx context.Context, path string) []byte {
	var body []byte
	_, err := a.ask(ctx, path, func(r io.Reader) (err error) {
		body, err = io.ReadAll(io.LimitReader(r, maxLook))
		return err
	})
	if err != nil {
		return nil
	}
	return body
}

// whyNot says in a few words why an engine could not be asked.
func whyNot(err error) string {
	var timeout net.Error
	var name *net.DNSError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nobody listens there (connection refused)"
	case errors.As(err, &name):
		return fmt.Sprintf("the name %s is not known here", name.Name)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("no answer within %v", lookTimeout)
	}
	var inner interface{ Unwrap() error }
	if errors.As(err, &inner) && inner.Unwrap() != nil {
		err = inner.Unwrap() // without the method and the URL, which stand beside it
	}
	return err.Error()
}

// await waits until the engine serves, and says now and then that it does not.
func (e *remoteEngine) await(ctx context.Context, key string) (lookedAt, error) {
	began := time.Now()
	var said time.Time
	pause := backoff.Backoff{Least: 250 * time.Millisecond, Most: 2 * time.Second}
	for {
		found, err := e.set.look(ctx, &e.of, key)
		var later *notYet
		if !errors.As(err, &later) || ctx.Err() != nil {
			return found, err
		}
		e.is(EngineWaiting, later.why)
		if after := time.Since(began); after >= sayAfter && time.Since(said) >= sayEvery {
			said = time.Now()
			e.log.Info("waiting for the engine", "for", after.Round(time.Second), "error", later.why)
		}
		if pause.Wait(ctx) != nil {
			return lookedAt{}, context.Cause(ctx)
		}
	}
}
