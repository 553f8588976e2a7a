defmodule ExternalService.ValidationError do
  @moduledoc """
  Raised when an option has an unknown name or a value of the wrong type or range.

  Where `NimbleOptions` is loaded its `NimbleOptions.ValidationError` is raised instead; the fields are the same:

    * `:message` - what was expected and what was given
    * `:key` - the option, or the list of unknown options
    * `:keys_path` - the options it is nested in, outermost first
    * `:value` - what was given
  """
  defexception [:message, :key, :value, keys_path: []]

  @type t :: %__MODULE__{
          message: String.t(),
          key: atom() | [atom()] | nil,
          keys_path: [atom()],
          value: term()
        }

  @impl true
  def message(%__MODULE__{message: message, keys_path: []}), do: message

  def message(%__MODULE__{message: message, keys_path: path}),
    do: "#{message} (in options #{inspect(path)})"
end
