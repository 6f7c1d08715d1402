// Package family counts the tokens that media fill in a prompt, as the processors of
// families of models do, from the size of the media and the configuration files of the
// checkpoint.
package family
