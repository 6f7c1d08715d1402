package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"penstock/internal/node/engines"
)

// listServedModels lists the models of remote engines, each once.
func listServedModels(all []engines.Status) string {
	var names []string
	for _, e := range all {
		if e.State == engines.StateServing && !slices.Contains(names, e.Model) {
			names = append(names, e.Model)
		}
	}
	return strings.Join(names, ", ")
}

// printEngines writes a table of remote engines, and below it their adapters, notes and warnings.
func printEngines(w io.Writer, all []engines.Status) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var later []string // printed below the table: a row with fewer cells would break its columns
	fmt.Fprintln(tw, "  ENGINE\tMODEL\tWORKERS\tKV BLOCKS\tEVENTS\tMEDIA\tTOKENS FROM")
	for _, e := range all {
		if e.State != engines.StateServing {
			later = append(later, fmt.Sprintf("  %s  not yet: %s; it is taken in when it comes\n", e.Name(), printableLines(e.Detail)))
			continue
		}
		ids := make([]string, len(e.Workers))
		for i, id := range e.Workers {
			ids[i] = strconv.FormatUint(id, 10)
		}
		if e.Role != "" {
			fmt.Fprintf(tw, "  %s\t%s\t%s\t-\t-\t%s\trole %s\n", e.Name(), e.Model, strings.Join(ids, ","), strings.Join(e.Media, ", "), e.Role)
			continue
		}
		fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Name(), e.Model, strings.Join(ids, ","), describeBlocks(&e), e.Events, describeMedia(&e), describeTokenizer(e.Tokenizer))
	}
	_ = tw.Flush() // a failed write is not a reason to stop serving
	fmt.Fprint(w, strings.Join(later, ""))
	for _, e := range all {
		for _, name := range e.Adapters {
			fmt.Fprintf(w, "  %s also serves %s (LoRA)\n", e.Name(), name)
		}
		for _, n := range e.Notes {
			fmt.Fprintf(w, "\n  note: %s: %s\n", e.Name(), printableLines(n))
		}
		for _, n := range e.Warnings {
			fmt.Fprintf(w, "\n  warning: %s: %s\n", e.Name(), printableLines(n.Detail))
			if n.Remedy != "" {
				fmt.Fprintf(w, "           -> %s\n", printableLines(n.Remedy))
			}
		}
	}
}

// describeBlocks describes the size of an engine's cache.
func describeBlocks(e *engines.Status) string {
	if e.Blocks == 0 {
		return fmt.Sprintf("? of %d tokens", e.BlockSize)
	}
	return fmt.Sprintf("%d of %d tokens", e.Blocks, e.BlockSize)
}

// describeMedia names the media which an engine's model accepts.
func describeMedia(e *engines.Status) string {
	switch kinds := strings.Join(e.Media, ", "); {
	case kinds == "":
		return "none"
	case !e.MediaNamed:
		return kinds + " (routed by text)"
	default:
		return kinds
	}
}

// describeTokenizer says where text is tokenized.
func describeTokenizer(from string) string {
	if from == "engine" {
		return "the engine (requests pass as they are)"
	}
	return from
}
