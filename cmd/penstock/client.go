package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// defaultServer is where "penstock up" listens.
const defaultServer = "http://127.0.0.1:8000"

// maxAnswer bounds what the client reads of one answer, in bytes.
const maxAnswer = 64 << 20

// client asks a running Penstock.
type client struct {
	server string
	http   *http.Client
}

func newClient(server string) *client {
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	return &client{server: strings.TrimRight(server, "/"), http: &http.Client{Transport: &http.Transport{
		ResponseHeaderTimeout: 30 * time.Second,
	}}}
}

func addServerFlag(cmd *cobra.Command, server *string) {
	cmd.Flags().StringVar(server, "server", defaultServer, "URL of the running process to ask")
}

func (c *client) get(ctx context.Context, path string, out any) error {
	return c.do(ctx, http.MethodGet, path, nil, out)
}

func (c *client) post(ctx context.Context, path string, in, out any) error {
	return c.do(ctx, http.MethodPost, path, in, out)
}

func (c *client) do(ctx context.Context, method, path string, in, out any) error {
	resp, err := c.open(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return fmt.Errorf("%s%s: answer is not what this version expects: %w", c.server, path, err)
	}
	return nil
}

// onlyModel returns the name of the model served, if it is one; its aliases are
// listed with it.
func (c *client) onlyModel(ctx context.Context) (string, error) {
	var list struct {
		Data []struct {
			ID   string `json:"id"`
			Root string `json:"root"` // of an alias, the model's own name
		} `json:"data"`
	}
	if err := c.get(ctx, "/v1/models", &list); err != nil {
		return "", err
	}
	var names []string
	for _, m := range list.Data {
		if m.Root == "" {
			m.Root = m.ID
		}
		if !slices.Contains(names, m.Root) {
			names = append(names, m.Root)
		}
	}
	switch len(names) {
	case 0:
		return "", fmt.Errorf("%s serves no model yet; see penstock workers", c.server)
	case 1:
		return names[0], nil
	}
	return "", usage(fmt.Errorf("several models are served, choose one with --model: %s", strings.Join(names, ", ")))
}

// open sends a request and returns its answer if the status is 200. The caller
// closes the body.
func (c *client) open(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		data, raw := in.(json.RawMessage) // goes as it is
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
		return nil, usage(fmt.Errorf("--server: %w", err))
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("no answer from %s (is \"penstock up\" running? name another with --server): %w", c.server, errors.Unwrap(err))
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, refused(c.server+path, resp)
	}
	return resp, nil
}

func refused(url string, resp *http.Response) error {
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&body) == nil && body.Error.Message != "" {
		return errors.New(body.Error.Message)
	}
	return fmt.Errorf("%s answered %s", url, resp.Status)
}
