//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// hostAddresses are the addresses of hosts in the documents: all of them are this machine, in its own network
// namespace. The last one is not a private address.
var (
	hostAddresses = []string{"10.0.0.1", "10.0.0.5", "10.0.0.6", "10.0.0.7", "93.184.215.14"}
	hostNames     = map[string]string{
		"localhost": "127.0.0.1", "llm.example": "10.0.0.1", "llm.example.com": "10.0.0.1", "collector": "10.0.0.7",
		"a": "10.0.0.5", "b": "10.0.0.6", "files.example.com": "93.184.215.14",
	}
)

// enterNamespace configures the network of the namespace, and mounts copies over the directories to which
// documents write.
func enterNamespace(dir string, blocks []*docBlock) error {
	names, err := os.Create(filepath.Join(dir, "hosts"))
	if err != nil {
		return err
	}
	for name, address := range hostNames {
		fmt.Fprintln(names, address, name)
	}
	if err := names.Close(); err != nil {
		return err
	}
	script := "ip link set lo up && mount --bind " + names.Name() + " /etc/hosts"
	if mentionsAny(blocks, "/srv/") {
		script += " && mount -t tmpfs tmpfs /srv"
	}
	if mentionsAny(blocks, "/etc/") {
		etc := filepath.Join(dir, "etc")
		script += fmt.Sprintf(" && cp -a /etc %s && mount --bind %s /etc", etc, etc)
	}
	for _, a := range hostAddresses {
		script += " && ip address add " + a + "/32 dev lo"
	}
	if out, err := exec.Command("bash", "-c", script).CombinedOutput(); err != nil {
		return fmt.Errorf("network namespace: %w: %s", err, out)
	}
	return nil
}

// needsNamespace reports whether blocks name hosts or directories which this machine has only in a namespace.
func needsNamespace(blocks []*docBlock) bool {
	if mentionsAny(blocks, "/srv/", "/etc/") || mentionsAny(blocks, hostAddresses...) {
		return true
	}
	for name := range hostNames {
		if name != "localhost" && mentionsAny(blocks, "//"+name) {
			return true
		}
	}
	return false
}

// mentionsAny reports whether a block, or its preparation, has one of the texts.
func mentionsAny(blocks []*docBlock, texts ...string) bool {
	return slices.ContainsFunc(blocks, func(b *docBlock) bool {
		return slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(b.Prepare+b.Text, t) })
	})
}

// unshareCommand returns the command which runs a program in its own namespaces, or nothing if this process
// may not make them.
func unshareCommand() []string {
	base := []string{"unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"}
	for _, command := range [][]string{base, append(base, "--map-root-user")} {
		probe := append(command[1:len(command):len(command)], "sh", "-c", "ip link set lo up && mount -t tmpfs tmpfs "+os.TempDir())
		if exec.Command(command[0], probe...).Run() == nil {
			return command
		}
	}
	return nil
}
