package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// maxShards bounds the files held open at once.
const maxShards = 1024

// decodeIndex parses model.safetensors.index.json into a map from tensor name to
// the shard that holds it.
func decodeIndex(data []byte) (map[string]string, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var weights map[string]string
	shards := make(map[string]struct{})
	err := walkObject(dec, func(key string) error {
		if key != "weight_map" {
			var ignored json.RawMessage
			return dec.Decode(&ignored)
		}
		weights = make(map[string]string)
		err := walkObject(dec, func(tensor string) error {
			shard, err := readString(dec)
			if err == nil {
				err = checkShardName(shard)
			}
			if err != nil {
				return fmt.Errorf("tensor %.100q: %w", tensor, err)
			}
			shards[shard] = struct{}{}
			if len(shards) > maxShards {
				return fmt.Errorf("more than %d shards", maxShards)
			}
			weights[tensor] = shard
			return nil
		})
		if err != nil {
			return fmt.Errorf("weight_map: %w", err)
		}
		return nil
	})
	if err == nil {
		err = expectEnd(dec)
	}
	if err != nil {
		return nil, err
	}
	if len(weights) == 0 {
		return nil, errors.New("weight_map is missing or empty")
	}
	return weights, nil
}

// checkShardName accepts the name of a file in the checkpoint's own directory. The name is untrusted, so it
// must not lead anywhere else. The file itself may be a symbolic link, as in the caches of download tools.
func checkShardName(name string) error {
	if !filepath.IsLocal(name) || strings.ContainsAny(name, `/\:`) || !strings.HasSuffix(name, ".safetensors") {
		return fmt.Errorf("shard %.100q is not the name of a .safetensors file in the same directory", name)
	}
	return nil
}
