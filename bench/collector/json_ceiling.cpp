// What a timeline costs at least: simdjson takes six columns out of each event and keeps nothing.
//
//   g++ -O3 -march=native -std=c++17 json_ceiling.cpp -lsimdjson -o json_ceiling
//   json_ceiling trace_view.json      prints events, sum of starts in ns, seconds of CPU, peak KiB
//
// The file is read in pieces, cut after the last event that is whole. The cut trusts that no string
// holds the text between two events: good enough for a limit, not for a reader.

#include <sys/resource.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "simdjson.h"

namespace {

constexpr size_t kPieceBytes = 4 << 20;
constexpr std::string_view kBetween = "}, {\"";

struct Columns {
    std::vector<char> phase;
    std::string names;
    std::vector<uint32_t> name_ends;
    std::vector<int64_t> pid, tid, start_ns;
    std::vector<double> dur_us;

    void clear() {
        phase.clear(), names.clear(), name_ends.clear();
        pid.clear(), tid.clear(), start_ns.clear(), dur_us.clear();
    }
};

// "1736408883688177.930" as ns; 0 where it is no such text.
int64_t nanoseconds(std::string_view text) {
    int64_t value = 0;
    int decimals = -1;
    for (char c : text) {
        if (c == '.') {
            decimals = 0;
        } else if (c >= '0' && c <= '9' && decimals < 3) {
            value = value * 10 + (c - '0');
            decimals += decimals >= 0;
        }
    }
    for (int have = decimals < 0 ? 0 : decimals; have < 3; ++have) value *= 10;
    return value;
}

size_t read_events(simdjson::ondemand::parser& parser, std::string& piece, size_t length,
                   Columns& columns) {
    size_t events = 0;
    simdjson::padded_string_view view(piece.data(), length, piece.capacity());
    auto document = parser.iterate(view);
    for (auto element : document.get_array()) {
        for (auto field : element.get_object()) {
            std::string_view key = field.unescaped_key();
            if (key == "ph") {
                columns.phase.push_back(std::string_view(field.value().get_string())[0]);
            } else if (key == "name") {
                columns.names += std::string_view(field.value().get_string());
                columns.name_ends.push_back(uint32_t(columns.names.size()));
            } else if (key == "pid") {
                columns.pid.push_back(int64_t(field.value()));
            } else if (key == "tid") {
                columns.tid.push_back(int64_t(field.value()));
            } else if (key == "ts") {
                columns.start_ns.push_back(nanoseconds(field.value().get_string()));
            } else if (key == "dur") {
                columns.dur_us.push_back(double(field.value()));
            }
        }
        ++events;
    }
    return events;
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 2) return std::fprintf(stderr, "usage: json_ceiling FILE\n"), 2;
    std::FILE* file = std::fopen(arguments[1], "rb");
    if (!file) return std::perror(arguments[1]), 3;
    simdjson::ondemand::parser parser;
    Columns columns;
    std::string piece, buffer(kPieceBytes, '\0'), rest;
    size_t events = 0;
    int64_t sum = 0;
    bool whole = false;
    piece.reserve(3 * kPieceBytes + simdjson::SIMDJSON_PADDING);
    std::fgetc(file);  // the bracket that opens the array
    while (!whole) {
        size_t got = std::fread(buffer.data(), 1, buffer.size(), file);
        whole = got < buffer.size();
        piece.assign("[").append(rest).append(buffer, 0, got);
        size_t cut = piece.rfind(kBetween);
        if (!whole) {
            if (cut == std::string::npos) return std::fprintf(stderr, "an event too long\n"), 3;
            rest.assign(piece, cut + 3, std::string::npos);
            piece.resize(cut + 1);
            piece += ']';
        }
        columns.clear();
        try {
            events += read_events(parser, piece, piece.size(), columns);
        } catch (const simdjson::simdjson_error& error) {
            return std::fprintf(stderr, "%s\n", error.what()), 3;
        }
        for (int64_t ns : columns.start_ns) sum += ns % 1000003;
    }
    std::fclose(file);
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    double seconds = double(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                     double(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    std::printf("%zu %lld %.3f %ld\n", events, (long long)sum, seconds, used.ru_maxrss);
    return 0;
}
