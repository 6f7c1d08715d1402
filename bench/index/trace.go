package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// readTrace returns the prompts of a file in Mooncake's format: a JSON object per line, whose hash_ids name
// the blocks of 512 tokens. A partial last block of a prompt counts as whole.
func readTrace(path string) (_ [][]uint64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	lines := json.NewDecoder(bufio.NewReader(f))
	var out [][]uint64
	for {
		var row struct {
			IDs []uint64 `json:"hash_ids"`
		}
		switch err := lines.Decode(&row); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("read trace %s: request %d: %w", filepath.Base(path), len(out), err)
		case len(row.IDs) == 0:
			return nil, fmt.Errorf("read trace %s: request %d: has no hash_ids", filepath.Base(path), len(out))
		}
		out = append(out, row.IDs)
	}
}
