package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"penstock/internal/doctor"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/internal/config"
	"penstock/internal/edge/keys"
)

// defaultServer is where "penstock up" listens.
const defaultServer = "http://127.0.0.1:8000"

// maxAnswer bounds what the client reads of one response, in bytes.
const maxAnswer = 64 << 20

// apiClient calls the HTTP API of a running Penstock.
type apiClient struct {
	server string
	flag   string // flag which names the server, with its dashes
	runs   string // command which starts such a server, "" for "penstock up"
	key    string // "" sends none
	http   *http.Client
}

// serverTarget is the server which a command calls, and how.
type serverTarget struct {
	server          string
	flag            *pflag.Flag // flag which names the server
	keyFile         string
	caFile          string
	noHeaderTimeout bool // no timeout for the response header
}

// findServer returns the URL which --server has if it is not given.
func findServer() string { return cmp.Or(config.ServerURL(os.Environ()), defaultServer) }

// addTargetFlags defines the flags of a target.
func addTargetFlags(cmd *cobra.Command, t *serverTarget) {
	t.addServerFlag(cmd, "server", findServer(), "URL of the running process to ask (env "+config.EnvServer+")")
	t.addKeyFileFlag(cmd)
	t.addCAFlag(cmd)
}

// addServerFlag defines the flag which names the server.
func (t *serverTarget) addServerFlag(cmd *cobra.Command, name, value, help string) {
	cmd.Flags().StringVar(&t.server, name, value, help)
	t.flag = cmd.Flags().Lookup(name)
}

func (t *serverTarget) addKeyFileFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.keyFile, "api-key-file", "", "key file whose first key for administrators is shown to the server (env "+config.EnvKey+" is a key itself)")
}

func (t *serverTarget) addCAFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.caFile, "ca", "", "file with the certificates that sign an https server's (PEM); empty is the system's")
}

// isNamed reports whether a server is given, by flag or default.
func (t *serverTarget) isNamed() bool { return t.flag.Changed || t.server != "" }

// flagName returns the flag as users write it.
func (t *serverTarget) flagName() string { return "--" + t.flag.Name }

// serverURL returns the URL of the server without a trailing slash and without a trailing /v1, which clients
// of the OpenAI API include.
func (t *serverTarget) serverURL() (string, error) {
	server := t.server
	if !strings.Contains(server, "://") && server != "" {
		server = "http://" + server
	}
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		return "", usageError(fmt.Errorf("%s: %.100q is not a URL like %s", t.flagName(), t.server, defaultServer))
	}
	return strings.TrimRight(strings.TrimSuffix(strings.TrimRight(server, "/"), "/v1"), "/"), nil
}

// newClient returns a client of the target.
func (t *serverTarget) newClient() (*apiClient, error) {
	server, err := "", error(nil)
	if t.isNamed() {
		if server, err = t.serverURL(); err != nil {
			return nil, err
		}
	}
	c := &apiClient{server: server, flag: t.flagName(), key: config.APIKey(os.Environ())}
	if t.keyFile != "" {
		if c.key, err = keys.ReadSecret(t.keyFile); err != nil {
			return nil, usageError(fmt.Errorf("--api-key-file: %w", err))
		}
	}
	transport := &http.Transport{ForceAttemptHTTP2: true}
	if !t.noHeaderTimeout {
		transport.ResponseHeaderTimeout = 30 * time.Second
	}
	if t.caFile != "" {
		roots, err := config.LoadAuthorities("ca", t.caFile)
		if err != nil {
			return nil, usageError(fmt.Errorf("--ca: %w", err))
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	// The key is for one server only, so redirects are not followed.
	c.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return c, nil
}

func (c *apiClient) getJSON(ctx context.Context, path string, out any) error {
	return c.requestJSON(ctx, http.MethodGet, path, nil, out)
}

func (c *apiClient) postJSON(ctx context.Context, path string, in, out any) error {
	return c.requestJSON(ctx, http.MethodPost, path, in, out)
}

func (c *apiClient) requestJSON(ctx context.Context, method, path string, in, out any) error {
	resp, err := c.sendRequest(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		if wrong := c.diagnosePeer(ctx, nil); wrong != nil {
			return wrong
		}
		return fmt.Errorf("%s%s: answer is not what this version expects: %w", c.server, path, err)
	}
	return nil
}

// errNoModel is the end of the error about a server which serves none.
var errNoModel = errors.New("no model yet")

// The wait of awaitOnlyModel, and how often it asks.
const (
	modelWait     = 10 * time.Second
	modelInterval = 200 * time.Millisecond
)

// awaitOnlyModel is findOnlyModel which gives a server that has just started time to have a worker, and says so.
func (c *apiClient) awaitOnlyModel(ctx context.Context, stderr io.Writer) (string, error) {
	name, err := c.findOnlyModel(ctx)
	if errors.Is(err, errNoModel) {
		fmt.Fprintf(stderr, "waiting up to %v for a model at %s\n", modelWait, c.server)
	}
	for until := time.Now().Add(modelWait); errors.Is(err, errNoModel) && time.Now().Before(until); {
		select {
		case <-time.After(modelInterval):
		case <-ctx.Done():
			return "", ctx.Err()
		}
		name, err = c.findOnlyModel(ctx)
	}
	return name, err
}

// findOnlyModel returns the name of the served model if there is exactly one. The list contains its aliases
// too. A router process has no list of models; there the models of its workers count.
func (c *apiClient) findOnlyModel(ctx context.Context) (string, error) {
	var list struct {
		Data []struct {
			ID   string `json:"id"`
			Root string `json:"root"` // an alias has the model's own name here
		} `json:"data"`
	}
	var names []string
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	err := c.getJSON(ctx, "/v1/models", &list)
	if refusal := (*statusError)(nil); errors.As(err, &refusal) && refusal.status == http.StatusNotFound {
		var workers struct {
			Rows []struct {
				Model string `json:"model"`
			} `json:"rows"`
		}
		err = c.getJSON(ctx, "/v1/router/workers", &workers)
		for _, w := range workers.Rows {
			add(w.Model)
		}
	}
	if err != nil {
		return "", err
	}
	listed := map[string]bool{}
	for _, m := range list.Data {
		listed[m.ID] = true
	}
	for _, m := range list.Data {
		if listed[m.Root] { // other servers put the path of the model's files there
			m.ID = m.Root
		}
		add(m.ID)
	}
	switch len(names) {
	case 0:
		return "", fmt.Errorf("%s serves %w; see penstock workers", c.server, errNoModel)
	case 1:
		return names[0], nil
	}
	return "", usageError(fmt.Errorf("several models are served, choose one with --model: %s", strings.Join(names, ", ")))
}

// sendRequest sends a request and returns the response if its status is 200. The caller closes the body.
func (c *apiClient) sendRequest(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		data, raw := in.(json.RawMessage) // sent unchanged
		if !raw {
			var err error
			if data, err = json.Marshal(in); err != nil {
				return nil, err
			}
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.server+path, body)
	if err != nil {
		return nil, usageError(fmt.Errorf("%s: %w", c.flag, err))
	}
	req.Header.Set("Content-Type", "application/json")
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if wrong := c.diagnosePeer(ctx, err); wrong != nil {
			return nil, wrong
		}
		return nil, fmt.Errorf("no answer from %s (is \"%s\" running? name another with %s): %w", c.server, cmp.Or(c.runs, "penstock up"), c.flag, errors.Unwrap(err))
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, c.refusalError(ctx, path, resp)
	}
	return resp, nil
}

// diagnosePeer returns an error if the server is not a Penstock, or if the URL has the wrong scheme. cause is
// the error of a request; nil if there was a response.
func (c *apiClient) diagnosePeer(ctx context.Context, cause error) error {
	return peerError(doctor.DescribePeer(ctx, c.http, c.server, c.flag, cause))
}

// diagnoseScheme is diagnosePeer for a server which need not be a Penstock.
func (c *apiClient) diagnoseScheme(ctx context.Context, cause error) error {
	return peerError(doctor.DescribeScheme(ctx, c.server, c.flag, cause))
}

func peerError(wrong *doctor.WrongPeer) error {
	if wrong == nil {
		return nil
	}
	return fmt.Errorf("%s: %s", wrong.What, wrong.Remedy)
}

// refusalError returns the error of a response whose status is not 200.
func (c *apiClient) refusalError(ctx context.Context, path string, resp *http.Response) error {
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&body) == nil && body.Error.Message != "" {
		return &statusError{resp.StatusCode, body.Error.Message}
	}
	says := fmt.Sprintf("%s%s answered %s", c.server, path, resp.Status)
	switch resp.StatusCode {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		if wrong := c.diagnosePeer(ctx, nil); wrong != nil {
			says = wrong.Error()
		} else if resp.StatusCode == http.StatusNotFound {
			right := "a frontend or a router"
			if c.runs != "" {
				right = fmt.Sprintf("a process of %q", c.runs)
			}
			says = fmt.Sprintf("%s is a Penstock that does not serve %s: name %s with %s", c.server, path, right, c.flag)
		}
	}
	return &statusError{resp.StatusCode, says}
}

// statusError is a response whose status is not 200.
type statusError struct {
	status  int
	message string
}

func (r *statusError) Error() string { return r.message }
