//go:build linux

// Command docs runs every command block of the repository's README.md, docs/ and examples/ as written, and
// exits with 1 if one of them is wrong.
//
//	go build -o penstock ./cmd/penstock
//	go run ./test/docs -bin ./penstock                    # all files
//	go run ./test/docs -bin ./penstock docs/router.md     # one of them
//
// Indented blocks are commands. Fenced ones name their kind (sh, json, yaml, python, text); without a kind
// they are the output of the commands before them. A comment before a block gives its options:
//
//	<!-- run: continues, timeout=90s
//	penstock up
//	-->
//
// The options are in options.go. Commands inside the comment run before the block, and a comment which begins
// with "check:" has commands which run after it; readers see neither. A command which serves is started,
// awaited, and gets Ctrl-C when the blocks which use it have run; it must then exit with 0. Commands which
// need an accelerator run against "penstock sim": see the programs under imitation.
//
// Each group of blocks has its own directory and, where the system allows it, its own network, mount and
// process namespaces, in which the host names of the documents are this machine. Without namespaces groups
// run one after another, and groups which need such hosts are skipped.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "-task" {
		exitOn(runTask(os.Stdin, os.Stdout))
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := docRunner{out: os.Stdout}
	flag.StringVar(&r.bin, "bin", "./penstock", "the binary that blocks run")
	flag.StringVar(&r.root, "root", ".", "the repository")
	flag.IntVar(&r.jobs, "j", runtime.NumCPU()+2, "how many groups of blocks run at once")
	flag.BoolVar(&r.sequential, "sequential", false, "use no namespaces: one group after another, and none that needs other hosts")
	flag.BoolVar(&r.list, "list", false, "print the blocks and their kinds, and run nothing")
	flag.Parse()
	exitOn(r.runFiles(ctx, flag.Args()))
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "docs:", err)
		os.Exit(1)
	}
}

// docRunner runs the blocks of files and reports their outcomes.
type docRunner struct {
	bin, root        string
	jobs             int
	list, sequential bool
	out              io.Writer

	ci      string // the text of .ci/run
	dir     string
	caches  []string // the variables of Go's build caches
	unshare []string

	mu struct {
		sync.Mutex
		passed, failed, skipped int
	}
}

func (r *docRunner) runFiles(ctx context.Context, files []string) (err error) {
	begin := time.Now()
	if len(files) == 0 {
		if files, err = listDocuments(r.root); err != nil {
			return err
		}
	}
	all, texts, err := r.readGroups(files)
	if err != nil || r.list {
		return err
	}
	if err := r.setUp(); err != nil {
		return err
	}
	defer os.RemoveAll(r.dir)
	r.runAll(ctx, all)
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped; %d blocks of text; %.0f s\n", r.mu.passed, r.mu.failed, r.mu.skipped, texts, time.Since(begin).Seconds())
	if r.mu.failed > 0 || ctx.Err() != nil {
		return fmt.Errorf("%d blocks failed", r.mu.failed)
	}
	return nil
}

// listDocuments returns the Markdown files whose blocks run.
func listDocuments(root string) ([]string, error) {
	files := []string{"README.md"}
	for _, dir := range []string{"docs", "examples"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".md") {
				path, err = filepath.Rel(root, path)
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

// readGroups returns the groups of all files, slow ones first.
func (r *docRunner) readGroups(files []string) (all [][]*docBlock, texts int, err error) {
	ci, _ := os.ReadFile(filepath.Join(r.root, ".ci/run"))
	r.ci = string(ci)
	for _, f := range files {
		source, err := os.ReadFile(filepath.Join(r.root, f))
		if err != nil {
			return nil, 0, err
		}
		blocks, err := parseBlocks(f, string(source))
		if err != nil {
			return nil, 0, err
		}
		for _, b := range blocks {
			if ci := b.Options["ci"]; ci != "" && !slices.ContainsFunc(strings.Split(r.ci, "\n"), func(line string) bool { return strings.TrimSpace(line) == ci }) {
				return nil, 0, fmt.Errorf("%s: %q is no line of .ci/run", b, ci)
			}
			if r.list {
				fmt.Fprintln(r.out, b, b.Kind, b.Options)
			}
		}
		runs, n, err := groupBlocks(blocks)
		if err != nil {
			return nil, 0, err
		}
		all, texts = append(all, runs...), texts+n
	}
	slices.SortStableFunc(all, func(a, b []*docBlock) int { return int(longestLimit(b) - longestLimit(a)) })
	return all, texts, nil
}

func longestLimit(g []*docBlock) (t time.Duration) {
	for _, b := range g {
		t = max(t, b.Options.timeLimit())
	}
	return t
}

// setUp makes the directory of the programs on the blocks' PATH.
func (r *docRunner) setUp() (err error) {
	if r.root, err = filepath.Abs(r.root); err != nil {
		return err
	}
	if r.bin, err = filepath.Abs(r.bin); err != nil {
		return err
	}
	if _, err := os.Stat(r.bin); err != nil {
		return fmt.Errorf("%w: go build -o penstock ./cmd/penstock makes it", err)
	}
	if r.dir, err = os.MkdirTemp("", "penstock-docs-"); err != nil {
		return err
	}
	if !r.sequential {
		r.unshare = unshareCommand()
	}
	if r.unshare == nil {
		fmt.Fprintln(r.out, "no namespaces (they take root, or users that may make them): blocks run one after another")
		r.jobs = 1
	}
	caches := []string{"GOMODCACHE", "GOCACHE", "GOPATH"}
	values, err := exec.Command("go", append([]string{"env"}, caches...)...).Output()
	if err != nil {
		return err
	}
	for i, value := range strings.Split(strings.TrimSpace(string(values)), "\n") {
		r.caches = append(r.caches, caches[i]+"="+value)
	}
	bin := filepath.Join(r.dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		return err
	}
	if err := os.Symlink(r.bin, filepath.Join(bin, "penstock")); err != nil {
		return err
	}
	for _, program := range []string{"vllm", "llama-server", "trtllm-serve", "python"} {
		if err := os.Symlink(filepath.Join(r.root, "test/docs/imitation/engine.sh"), filepath.Join(bin, program)); err != nil {
			return err
		}
	}
	return nil
}

func (r *docRunner) runAll(ctx context.Context, all [][]*docBlock) {
	slots := make(chan struct{}, r.jobs)
	var done sync.WaitGroup
	for i, g := range all {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		done.Go(func() {
			defer func() { <-slots }()
			r.reportGroup(g, r.runGroup(ctx, filepath.Join(r.dir, fmt.Sprint(i)), g))
		})
	}
	done.Wait()
}

// runGroup runs blocks in their own process.
func (r *docRunner) runGroup(ctx context.Context, dir string, g []*docBlock) []blockOutcome {
	all := make([]blockOutcome, len(g))
	if r.unshare == nil && needsNamespace(g) {
		for i := range all {
			all[i].Skipped = []string{"all: it names hosts that exist in a network namespace only"}
		}
		return all
	}
	fail := func(err error, more []byte) []blockOutcome {
		for i := range all {
			all[i].Failed = fmt.Sprintf("%v %s", err, more)
		}
		return all
	}
	work := filepath.Join(dir, "work")
	if err := r.copyTree(work, g); err != nil {
		return fail(err, nil)
	}
	defer os.RemoveAll(dir)
	in, err := json.Marshal(sessionTask{Blocks: g, Root: r.root, Work: work, Alone: r.unshare != nil})
	if err != nil {
		return fail(err, nil)
	}
	self, err := os.Executable()
	if err != nil {
		return fail(err, nil)
	}
	args := append(slices.Clone(r.unshare), self, "-task")
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin, cmd.Env, cmd.Dir = bytes.NewReader(in), r.groupEnvironment(dir), work
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &all)
	}
	if err != nil {
		return fail(err, errs.Bytes())
	}
	return all
}

// groupEnvironment returns an environment without machine-specific settings: no proxies, and a new home, but
// Go's caches.
func (r *docRunner) groupEnvironment(dir string) []string {
	var env []string
	for _, v := range os.Environ() {
		name, value, _ := strings.Cut(v, "=")
		if name == "PATH" {
			v = "PATH=" + filepath.Join(r.dir, "bin") + ":" + value
		}
		if !strings.HasSuffix(strings.ToLower(name), "_proxy") && !strings.HasPrefix(name, "PENSTOCK") && name != "URL" && name != "MODEL" {
			env = append(env, v)
		}
	}
	home, tmp := filepath.Join(dir, "home"), filepath.Join(dir, "tmp")
	_ = os.MkdirAll(home, 0o755)
	_ = os.MkdirAll(tmp, 0o755)
	_ = os.WriteFile(filepath.Join(home, ".curlrc"), []byte("fail-with-body\nsilent\nshow-error\n"), 0o600) // HTTP errors are errors
	return append(append(env, r.caches...), "HOME="+home, "TMPDIR="+tmp,
		"GOFLAGS=-trimpath", "GOPROXY=off", "LC_ALL=C.UTF-8", "TESTDATA="+filepath.Join(r.root, "test/docs/testdata"))
}

// copyTree makes the directory in which blocks run: a copy of the whole repository if they build, else of the
// files which they read.
func (r *docRunner) copyTree(work string, g []*docBlock) error {
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	parts := []string{"examples", "deploy"}
	for _, b := range g {
		if text := b.Prepare + b.Text; strings.Contains(text, "go ") || strings.Contains(text, "tools/") {
			parts = []string{"."}
		}
	}
	const copyFiles = `set -o pipefail
(git ls-files -z -c -o --exclude-standard "$@" 2>/dev/null || find "$@" -type f -print0) | tar --null -T - -cf - | tar -xf - -C "$0"`
	cmd := exec.Command("bash", append([]string{"-c", copyFiles, work}, parts...)...)
	cmd.Dir = r.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("copy of the repository: %w: %s", err, out)
	}
	return nil
}

// reportGroup prints a line for each block, and why it failed.
func (r *docRunner) reportGroup(g []*docBlock, all []blockOutcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, o := range all {
		word := "ok  "
		switch {
		case o.Failed != "":
			word = "FAIL"
			r.mu.failed++
		case len(o.Skipped) > 0:
			word = "SKIP"
			r.mu.skipped++
		default:
			r.mu.passed++
		}
		fmt.Fprintf(r.out, "%s  %-32s %-9s %-12s %5.1f s\n", word, g[i], g[i].Kind, o.How, o.Seconds)
		for _, s := range o.Elsewhere {
			fmt.Fprintf(r.out, "      run by .ci/run: %s\n", s)
		}
		for _, s := range o.Skipped {
			fmt.Fprintf(r.out, "      skipped: %s\n", s)
		}
		if o.Failed != "" {
			fmt.Fprintf(r.out, "      %s\n", o.Failed)
		}
	}
}
