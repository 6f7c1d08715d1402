package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"penstock/internal/config"
	"penstock/internal/node"
)

// wantsHumanText reports whether w takes text for people among the records of the log: w is a terminal and
// the log format is not JSON.
func wantsHumanText(w io.Writer, l *config.Loaded) bool {
	return isTerminal(w) && l.Log.Format != "json"
}

// reportExit reports after the log how a serving process ended: in words for people, as a record in a JSON
// log. It returns the error to exit with.
func reportExit(w io.Writer, l *config.Loaded, what string, err error) error {
	switch {
	case err == nil && wantsHumanText(w, l):
		fmt.Fprintf(w, "penstock: %s\n", what)
	case err != nil && l.Log.Format == "json":
		node.LogFailure(l, w, err)
		return reportedError{err}
	}
	return err
}

// reportedError is an error which has already been reported to the user.
type reportedError struct{ error }

func (e reportedError) Unwrap() error { return e.error }

// curlFlags returns the flags with which curl reaches a server at url.
func curlFlags(url string, a node.Access) (flags []string) {
	if a.CertFile != "" {
		flags = append(flags, "--cacert "+quoteShellWord(a.CertFile))
	}
	if a.Name != "" {
		host := func(url string) string { return strings.TrimPrefix(url, "https://") }
		flags = append(flags, "--connect-to "+host(a.URLOf(url))+":"+host(url))
	}
	return flags
}

// keyHint says where the API key of the examples comes from; "" without keys.
func keyHint(a node.Access) string {
	if a.KeyFile == "" {
		return ""
	}
	return fmt.Sprintf("  Keys:     export %s=KEY first, with a key of %s; the commands below read it too\n", config.EnvKey, a.KeyFile)
}

// serverHint names the flags which other commands need to reach the server, if any.
func serverHint(url string, a node.Access) string {
	if flags := serverFlags(url, a); flags != "" {
		return "   (with" + flags + ")"
	}
	return ""
}

// serverFlags returns the flags which other commands need to reach the server, each preceded by a space; ""
// if it is the one which they ask without flags.
func serverFlags(url string, a node.Access) string {
	if url == findServer() {
		return ""
	}
	flags := " --server " + a.URLOf(url)
	if a.CertFile != "" {
		flags += " --ca " + quoteShellWord(a.CertFile)
	}
	return flags
}

// quoteShellWord quotes a path for a shell if necessary.
func quoteShellWord(path string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./@%+=:,"
	if strings.Trim(path, plain) == "" {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// printable returns s as one line in which every character that does not print, such as an escape sequence
// from a server, is escaped.
func printable(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		q := strconv.QuoteRune(r)
		b.WriteString(q[1 : len(q)-1])
	}
	return b.String()
}

// printableLines is printable for text of several lines.
func printableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return strings.Join(lines, "\n")
}
