// Text as tokens for one run, `startrail train --tokenizer`: they are kept in the run's folder, and made once.
#pragma once

#include <string>

#include "startrail/train/data/tokenize/tokenize.h"
#include "startrail/train/loop/config.h"

namespace startrail {

// Tokenizes data.path, and data.validation_path where it is given, into folders of run.folder. What an earlier start
// has made is kept as far as nothing changed. UserError for a DiT, and for data that is tokens already.
void tokenize_data(TrainConfig config, const std::string& tokenizer, const TokenizeObserver& observer = {});

// The settings with these folders as the data.
TrainConfig with_tokens(TrainConfig config);

}  // namespace startrail
