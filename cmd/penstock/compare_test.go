package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/internal/replay"
	"penstock/internal/replay/report"
)

func TestCompare(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, mean float64) string {
		file := filepath.Join(dir, name)
		var out bytes.Buffer
		row := replay.Row{Policy: "kv", Workers: 8, Requests: 2000, TTFT: replay.Distribution{Count: 2000, Mean: mean}}
		if err := report.WriteJSON(&out, &replay.Result{Command: "replay", Version: "v1", Rows: []replay.Row{row}}); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	a, b := write("a.json", 200), write("b.json", 100)
	bad := filepath.Join(dir, "bad.json")
	if err := os.WriteFile(bad, []byte(`{"rows":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	execute := func(arguments ...string) (string, error) {
		var out bytes.Buffer
		cmd := newCompareCommand()
		cmd.SetArgs(arguments)
		cmd.SetOut(&out)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		err := cmd.Execute()
		return out.String(), err
	}

	if out, err := execute(a, b); err != nil || !strings.Contains(out, "kv, 8 workers") || !strings.Contains(out, "0.500  better") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err := execute(b, a, "--json")
	var c report.Comparison
	if err != nil || json.Unmarshal([]byte(out), &c) != nil || len(c.Pairs) != 1 || !strings.Contains(out, `"verdict":"worse"`) {
		t.Errorf("%v\n%s", err, out)
	}
	for _, arguments := range [][]string{{a}, {a, b, b}, {a, filepath.Join(dir, "none.json")}, {a, bad}, {bad, a}} {
		_, err := execute(arguments...)
		coded, ok := err.(exitCodeError)
		if !ok || coded.code != exitUsage {
			t.Errorf("%v: %v", arguments, err)
		}
	}
	if _, err := execute(a, bad); err == nil || !strings.Contains(err.Error(), "bad.json: ") || !strings.Contains(err.Error(), "command is missing") {
		t.Errorf("a file that is no result: %v", err)
	}
}
