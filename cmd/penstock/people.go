package main

import (
	"fmt"
	"io"
	"strings"

	"penstock/internal/config"
	"penstock/internal/node"
)

// forPeople reports whether words for people may stand on w beside the records of a process's
// log: w is a terminal, and the records are no JSON, which other programs read.
func forPeople(w io.Writer, l *config.Loaded) bool { return isTerminal(w) && l.LogFormat != "json" }

// ended tells how a process that serves has ended, after its log: people in words, and a log
// of JSON, which has nothing but records, by a record. It returns the error to exit with.
func ended(w io.Writer, l *config.Loaded, what string, err error) error {
	switch {
	case err == nil && forPeople(w, l):
		fmt.Fprintf(w, "penstock: %s\n", what)
	case err != nil && l.LogFormat == "json":
		node.LogFailure(l, w, err)
		return reportedError{err}
	}
	return err
}

// reportedError is an error that the user has been told.
type reportedError struct{ error }

func (e reportedError) Unwrap() error { return e.error }

// curlFlags are the flags with which curl reaches a server at url, each with a space before it.
func curlFlags(url string, a node.Access) string {
	var b strings.Builder
	if a.CertFile != "" {
		b.WriteString(" --cacert " + shellWord(a.CertFile))
	}
	if a.Name != "" {
		host := func(url string) string { return strings.TrimPrefix(url, "https://") }
		b.WriteString(" --connect-to " + host(a.URLOf(url)) + ":" + host(url))
	}
	return b.String()
}

// keyHeader is curl's flag for the key of a request, with a space before it; "" without keys.
func keyHeader(a node.Access) string {
	if a.KeyFile == "" {
		return ""
	}
	return ` -H "Authorization: Bearer $` + config.EnvKey + `"`
}

// keyHint says where the key of keyHeader comes from; "" without keys.
func keyHint(a node.Access) string {
	if a.KeyFile == "" {
		return ""
	}
	return fmt.Sprintf("  Keys:     export %s=KEY first, with a key of %s; the commands below read it too\n", config.EnvKey, a.KeyFile)
}

// serverHint names the flags that the other commands need, if any.
func serverHint(url string, a node.Access) string {
	if flags := serverFlags(url, a); flags != "" {
		return "   (with" + flags + ")"
	}
	return ""
}

// serverFlags returns the flags that other commands need to ask the server, each with a
// space before it: none if it is the one they ask by default.
func serverFlags(url string, a node.Access) string {
	if url == defaultServer {
		return ""
	}
	flags := " --server " + a.URLOf(url)
	if a.CertFile != "" {
		flags += " --ca " + shellWord(a.CertFile)
	}
	return flags
}

// shellWord quotes a path for a shell where it needs that.
func shellWord(path string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./@%+=:,"
	if strings.Trim(path, plain) == "" {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
