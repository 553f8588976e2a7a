defmodule ExternalService.Insights.Report do
  @moduledoc """
  What `ExternalService.Insights` has counted of one service, and what it makes of it.

    * `:calls` - those that have ended: `:succeeded`, `:failed` and `:rejected` together
    * `:failed` - those that ran out of retries or of time, and those that ended by an exception, a throw or an exit. A
      fallback that answered for one makes no difference
    * `:rejected` - those that the breaker refused
    * `:succeeded` - all others. Calls that a limit refused are among them, and those that were skipped because no time was
      left, since they say nothing against the service
    * `:degraded` - those of the succeeded that needed a retry
    * `:attempts` - failed attempts: those of calls that succeeded in the end, too
    * `:consecutive_failures`, `:worst_consecutive_failures` - calls that failed in a row, now and at most. A success ends
      the row, and so does a call that the breaker refuses
    * `:mean_call`, `:worst_call` - how long calls took, in milliseconds, their retries and waits included; those that the
      breaker refused are left out
    * `:findings` - what looks wrong, as `%{check: atom, message: text}`; see `ExternalService.Insights`
  """

  defstruct service: nil,
            calls: 0,
            succeeded: 0,
            failed: 0,
            rejected: 0,
            degraded: 0,
            attempts: 0,
            consecutive_failures: 0,
            worst_consecutive_failures: 0,
            mean_call: 0.0,
            worst_call: 0.0,
            findings: []

  @type finding :: %{check: atom(), message: String.t()}

  @type t :: %__MODULE__{
          service: ExternalService.service(),
          calls: non_neg_integer(),
          succeeded: non_neg_integer(),
          failed: non_neg_integer(),
          rejected: non_neg_integer(),
          degraded: non_neg_integer(),
          attempts: non_neg_integer(),
          consecutive_failures: non_neg_integer(),
          worst_consecutive_failures: non_neg_integer(),
          mean_call: float(),
          worst_call: float(),
          findings: [finding()]
        }
end
