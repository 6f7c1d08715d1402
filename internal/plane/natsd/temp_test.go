package natsd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A server that is killed cannot remove its temporary directory: the next one
// does. The test runs itself.
func TestAbandonedDirectoryIsRemoved(t *testing.T) {
	const env = "NATSD_TEST_TEMP"
	if os.Getenv(env) != "" {
		if _, err := Start(Config{}); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("started")
		select {} // until killed
	}
	t.Setenv("TMPDIR", t.TempDir())
	start(t, Config{}) // lives, and keeps its directory throughout
	alive := tempDirs(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestAbandonedDirectoryIsRemoved$")
	cmd.Env = append(os.Environ(), env+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 7)
	if _, err := out.Read(line); err != nil || string(line) != "started" {
		t.Errorf("the other process says %q, %v", line, err)
	}
	if n := len(tempDirs(t)); n != 2 {
		t.Errorf("%d directories of two servers", n)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed, as asked
	s, err := Start(Config{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(tempDirs(t)); n != 2 {
		t.Errorf("%d directories, want those of the two servers that live", n)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if have := tempDirs(t); len(have) != 1 || have[0] != alive[0] {
		t.Errorf("directories %v, want %v", have, alive)
	}
}

// What only looks like a temporary directory of ours is none of our business.
func TestForeignDirectoriesStay(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	write := func(parts ...string) {
		t.Helper()
		path := filepath.Join(append([]string{temp}, parts...)...)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(tempPrefix + "file")             // no directory
	write(tempPrefix+"chosen", lockName)   // a user's data directory with such a name
	write(tempPrefix+"unlocked", tempMark) // never got as far as its lock
	write("other-1", lockName)
	write("other-1", tempMark)
	write("kept", lockName)
	write("kept", tempMark)
	if err := os.Symlink(filepath.Join(temp, "kept"), filepath.Join(temp, tempPrefix+"link")); err != nil {
		t.Fatal(err)
	}
	before := tempDirs(t)
	s := start(t, Config{})
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if have := tempDirs(t); fmt.Sprint(have) != fmt.Sprint(before) {
		t.Errorf("left are %v, want %v", have, before)
	}
	if _, err := os.Stat(filepath.Join(temp, "kept", tempMark)); err != nil {
		t.Error(err)
	}
}

func tempDirs(t *testing.T) []string {
	t.Helper()
	list, err := os.ReadDir(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}
