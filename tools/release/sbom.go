package main

import (
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// The types below are the parts of CycloneDX 1.6 which an SBOM of a Go program needs
// (https://cyclonedx.org/docs/1.6/json/).
type bom struct {
	Format       string       `json:"bomFormat"`
	SpecVersion  string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     bomMetadata  `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type bomMetadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PackageURL string     `json:"purl,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn"`
}

// describeBinary returns the SBOM of a Go program, in JSON: what the linker wrote into it of its modules and its build.
func describeBinary(file, version string, at time.Time) ([]byte, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("SBOM: %w", err)
	}
	out, err := json.MarshalIndent(makeBOM(info, version, at), "", "  ")
	return append(out, '\n'), err
}

// makeBOM lists the Go standard library and the modules of a program.
func makeBOM(info *debug.BuildInfo, version string, at time.Time) bom {
	program := component{Type: "application", Ref: "penstock", Name: info.Main.Path, Version: version}
	for _, s := range info.Settings {
		program.Properties = append(program.Properties, property{"go:build:" + s.Key, s.Value})
	}
	standard := strings.TrimPrefix(info.GoVersion, "go")
	standard, _, _ = strings.Cut(standard, " ") // experiments follow
	parts := []component{newModule("std", standard, "")}
	for _, m := range info.Deps {
		used := m
		if m.Replace != nil {
			used = m.Replace
		}
		parts = append(parts, newModule(used.Path, used.Version, used.Sum))
	}
	slices.SortFunc(parts, func(a, b component) int { return cmp.Compare(a.Ref, b.Ref) })
	all := dependency{Ref: program.Ref, DependsOn: []string{}}
	for _, c := range parts {
		all.DependsOn = append(all.DependsOn, c.Ref)
	}
	return bom{"CycloneDX", "1.6", 1, bomMetadata{at.Format(time.RFC3339), program}, parts, []dependency{all}}
}

// newModule describes a Go module. sum is its line in go.sum, which is a hash of its tree and not of a file.
func newModule(path, version, sum string) component {
	// A package URL escapes the parts of a path, but not its slashes (https://github.com/package-url/purl-spec).
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	purl := "pkg:golang/" + strings.Join(parts, "/") + "@" + url.PathEscape(version)
	c := component{Type: "library", Ref: purl, Name: path, Version: version, PackageURL: purl}
	if sum != "" {
		c.Properties = []property{{"go:sum", sum}}
	}
	return c
}
