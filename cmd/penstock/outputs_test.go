package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"penstock/internal/replay"
)

// TestOutputsReplaceFilesAlone: results replace regular files, through links which stay; other targets are
// written directly.
func TestOutputsReplaceFilesAlone(t *testing.T) {
	dir := t.TempDir()
	pipe, file, link := filepath.Join(dir, "pipe"), filepath.Join(dir, "old.html"), filepath.Join(dir, "link.html")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0) // so that no open blocks
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()

	files, err := (&outputFlags{csv: pipe, html: link}).createFiles()
	if err != nil {
		t.Fatal(err)
	}
	defer files.discardUnfinished()
	if err := files.writeResult(io.Discard, &replay.Result{Command: "replay", Rows: []replay.Row{{Policy: "kv"}}, Plots: make([]replay.Plots, 1)}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(pipe); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Fatalf("the pipe is now %v, %v", info, err)
	}
	begin := make([]byte, len("command,"))
	if _, err := io.ReadFull(reader, begin); err != nil || string(begin) != "command," {
		t.Errorf("through the pipe came %q, %v", begin, err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is now %v, %v", info, err)
	}
	if text, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(text), "<!DOCTYPE html>") {
		t.Errorf("the file has %.40q, %v", text, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 3 {
		t.Errorf("%v is there, %v", left, err)
	}
}

// TestOutputsThatWouldBeLost: no output of a command overwrites another of its files.
func TestOutputsThatWouldBeLost(t *testing.T) {
	dir := t.TempDir()
	trace, link := filepath.Join(dir, "trace.jsonl"), filepath.Join(dir, "link")
	if err := os.WriteFile(trace, []byte("trace"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(trace, link); err != nil {
		t.Fatal(err)
	}
	for _, o := range []outputFlags{
		{csv: filepath.Join(dir, "same"), html: dir + "/./same"},
		{csv: trace},
		{html: link},
		{html: dir},
	} {
		if files, err := o.createFiles(trace); err == nil {
			files.discardUnfinished()
			t.Errorf("%+v is taken", o)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
			t.Errorf("%+v: %v is left, %v", o, left, err)
		}
	}
	files, err := (&outputFlags{csv: os.DevNull, html: os.DevNull}).createFiles("-")
	if err != nil {
		t.Fatal(err)
	}
	files.discardUnfinished()
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().IsRegular() {
		t.Errorf("it is now %v, %v", info, err)
	}
}
