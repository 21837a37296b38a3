#!/bin/sh
# Makes api/static/vendor.js, vendor.css and vendor-licences.txt anew, from the versions in package-lock.json. Needs Node.
set -e
cd "$(dirname "$0")"
npm ci --no-audit --no-fund --silent
npx esbuild entry.js --bundle --minify --format=esm --target=es2022 --legal-comments=none --outfile=../static/vendor.js
cp node_modules/uplot/dist/uPlot.min.css ../static/vendor.css
for package in preact @preact/signals @preact/signals-core htm uplot; do
    version=$(node -p "require('./node_modules/$package/package.json').version")
    printf '%s %s\n\n' "$package" "$version"
    cat "node_modules/$package/LICENSE"
    printf '\n\n'
done > ../static/vendor-licences.txt
(cd ../static && sha256sum vendor.js vendor.css vendor-licences.txt > vendor.sha256)
rm -rf node_modules
