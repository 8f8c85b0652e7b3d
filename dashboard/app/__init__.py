"""The dashboard: a Streamlit app over stores."""
