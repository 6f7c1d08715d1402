package main

import (
	"os"
	"path/filepath"
	"testing"

	"penstock/core/media"
)

// TestMemoryWithinBudgets: requests of many times the budgets are all merged with their own rows, no more memory is
// mapped than the budgets allow, and none is left.
func TestMemoryWithinBudgets(t *testing.T) {
	s := encodingSettings{cpu: 3 << 20, staging: 2 << 20, encoders: 3}
	var all []objectRequest
	for i := range 40 {
		all = append(all, objectRequest{media.Video, 64 + i%3*64, 8192}) // 512 KiB to 1.5 MiB
	}
	f, err := s.measureMemory(t.Context(), all)
	if err != nil {
		t.Fatal(err)
	}
	if f.CPU > s.cpu || f.Staging > s.staging || f.Mapped > s.cpu+s.staging || f.Wrong != 0 || f.Left != 0 {
		t.Errorf("%+v", f)
	}
	if f.Rows <= s.cpu || f.CPU == 0 || f.Staging == 0 || f.Requests != len(all) {
		t.Errorf("nothing was tried: %+v", f)
	}
	if hasRows(make([]byte, 64), 1) {
		t.Error("rows that were never written count as right")
	}
}

// TestBounds: what is read of a benchmark run stands beside its bound, and what is beyond it is found.
func TestBounds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "benchmarks")
	text := "goos: linux\nBenchmarkSubmit/objects=1 \t 10 \t 200000 ns/op\t 5 B/op\nBenchmarkStage/1024KiB-2 \t 10 \t 5 ns/op\t 4.5 GB/s\t 1.6 of-plain\n" +
		"BenchmarkOther \t 10 \t 7 ns/op\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := readBenchmarks(file)
	if err != nil || len(all) != 3 || all[0].Ratio != 2 || all[1].Ratio != 0 || all[2].Ratio != 0.5 {
		t.Fatalf("%+v, %v", all, err)
	}
	d := encodingDocument{Benchmarks: all}
	if v := findViolations(&encodingSettings{cpu: 1, staging: 1}, &d); len(v) != 1 {
		t.Errorf("%q", v)
	}
}
