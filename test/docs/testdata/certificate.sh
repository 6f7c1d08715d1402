# Makes a certificate for a host, which it signs itself, and has programs trust it.
# Usage: . certificate.sh HOST
case "$1" in *[a-z]*) kind=DNS ;; *) kind=IP ;; esac
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=$1" \
  -addext "subjectAltName=$kind:$1" -keyout key.pem -out chain.pem 2>/dev/null
cp chain.pem ca.pem
export SSL_CERT_FILE="$PWD/ca.pem" CURL_CA_BUNDLE="$PWD/ca.pem"
